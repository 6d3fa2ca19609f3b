"""Print the figures of the house: ``python -m tests.house``, with ``JAVA_HOME`` set.

A path is recorded from one fit on Spark (the driver) and one training in this process (a worker). A hop of a setting is
a function of sparkdl that ran and that names the setting. A hop of a row is a function of sparkdl on the stack: of the
driver when it pickles the work, and of a worker when its reducer starts. A path turns back where a function calls one
of a room that does not lie below its own.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from torch import nn

from sparkdl import AllReduce, LocalSGD, TorchRegressor
from sparkdl.cluster.group.world import Group
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce
from sparkdl.training.strategies.reducers.exact import Exact
from tests.law import RIDDLES, below, room_of
from tests.style.test_layers import ROOT, classic_confined, findings, floor_plan, imports, sources

PACKAGE = str(ROOT / "sparkdl") + "/"
STRATEGIES = ("allreduce", "local_sgd", "elastic_averaging", "gossip")


def lines(folder: str) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))


def stack() -> list[str]:
    """The modules of sparkdl on this stack, one per function."""
    files = [frame.filename for frame in traceback.extract_stack()]
    return [module_of(file) for file in files if file.startswith(PACKAGE)]


def module_of(file: str) -> str:
    return ".".join(Path(file).relative_to(ROOT).with_suffix("").parts)


def turns(path: Sequence[str]) -> int:
    """Calls from a room into one that does not lie below it."""
    rooms = [room_of(module) or "" for module in path]
    return sum(lower not in below(room) for room, lower in pairwise(rooms) if room and lower)


class Recording(nn.MSELoss):
    """Notes the driver's stack when it is pickled."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self.note = note

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        path, here = Path(self.note), stack()
        if "sparkdl.ml.gang_fit" in here:  # not a copy that a worker makes
            longest = json.loads(path.read_text()) if path.exists() else []
            path.write_text(json.dumps(max(longest, here, key=len)))
        return Recording, (self.note,)


@dataclass(frozen=True)
class Noting(Exact):
    """Sums as ``Exact`` does, and notes the worker's stack when a sum starts."""

    note: str = ""

    def open(self, buckets: Sequence[Bucket], group: Group) -> Any:
        reduction = super().open(buckets, group)
        start = reduction.start

        def noting(bucket: Bucket) -> PendingReduce:
            Path(f"{self.note}-{group.rank}").write_text(json.dumps(stack()))
            return start(bucket)

        reduction.start = noting  # type: ignore[method-assign]
        return reduction


@contextmanager
def called() -> Iterator[dict[CodeType, set[str]]]:
    """The functions of sparkdl that this thread calls in the block, each with the functions on its stacks."""
    codes: dict[CodeType, set[str]] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        callers, one = codes.setdefault(frame.f_code, set()), frame
        while one.f_back is not None and one.f_code.co_filename.startswith(PACKAGE):
            callers.add(one.f_code.co_name)
            one = one.f_back

    sys.setprofile(note)
    try:
        yield codes
    finally:
        sys.setprofile(None)


def names(code: CodeType) -> set[str]:
    constants = {constant for constant in code.co_consts if isinstance(constant, str)}
    return {*code.co_names, *code.co_varnames, *constants}


def path_of_a_fit(folder: str) -> dict[str, object]:
    """Hops of ``batchSize`` and of a row, and the files of a step."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    numbers = [([float(row)], float(row)) for row in range(64)]
    rows = spark.createDataFrame(numbers, "features array<float>, label float")
    noted = f"{folder}/driver", f"{folder}/worker"
    shared = {"batchSize": 8, "epochs": 1, "numWorkers": 2, "labelCol": "label"}
    strategy = LocalSGD(2, reduce=Noting(note=noted[1]))
    estimator = TorchRegressor(model=nn.Linear(1, 1), loss=Recording(noted[0]), strategy=strategy, **shared)
    with called() as driver:
        estimator.fit(rows)
    spark.stop()
    data = {"x": np.zeros((16, 1), np.float32), "y": np.zeros((16, 1), np.float32)}
    objective = Objective(nn.Linear(1, 1), nn.MSELoss())
    with called() as worker:
        columns = Columns((InputColumn("x"),), InputColumn("y"))
        InlineCluster().gang(Training(objective, 8, strategy=AllReduce()), data, columns)
    driven, worked = (json.loads(Path(note).read_text()) for note in (noted[0], f"{noted[1]}-0"))
    hops = {code for code in {**driver, **worker} if names(code) & {"batch_size", "batchSize"}}
    steps = [code.co_filename for code, callers in worker.items() if callers & {"gradients", "update"}]
    opened = {module_of(file) for file in steps if "/training/" in file}
    return {
        "hops of batchSize": len(hops),
        "hops of a row to a LocalSGD sum with a reducer": len(driven) + len(worked),
        "turns back on that way": turns(driven) + turns(worked),
        "files to follow one step": sorted({"sparkdl.training.loop", *opened}),
    }


def figures() -> dict[str, object]:
    """The figures that need no fit."""
    imported = {
        name: sum(target.startswith("sparkdl.") for _, target in imports(source))
        for source in sources(ROOT, ("sparkdl/training/strategies",))
        if (name := source.path.stem) in STRATEGIES
    }
    classes = [
        node.name
        for source in sources(ROOT, ("sparkdl",))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name in RIDDLES
    ]
    return {
        "lines of sparkdl": lines("sparkdl"),
        "lines of tests": lines("tests"),
        "names of sparkdl that a strategy imports": imported,
        "classes that are riddles": classes,
        "classic names outside the session and the runner": len(findings(classic_confined, ROOT)),
        **floor_plan(),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measured = figures() | path_of_a_fit(folder)
    print(*(f"{count!s:>6}  {name}" for name, count in measured.items()), sep="\n")
