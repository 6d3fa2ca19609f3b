"""Ensembles that drivers on the first of several hosts are told to train, and to which faults happen; all is JSON.

Faults (``tests.faults.Fault``) are

    of a member     phase ``"batch"``: at the start of a batch of training, from 1; the rank is the member's index
    of the driver   rank ``DRIVER``, and the step is how often the place has been reached before: ``"fit"``, before a
                    round of boosting trains its member; ``"model"``, when all members' tasks have ended, before one
                    becomes a model
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Model
from pyspark.ml.classification import DecisionTreeClassifier
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from torch import Tensor, nn

from sparkdl import TorchClassifier
from sparkdl.cluster.shutdown import TERMINATED, stoppable
from sparkdl.data.sampler import generator
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.boosting.estimator import Boosting
from sparkdl.ensembles.members import task_fits
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.bootstrap import member_seed
from sparkdl.errors import Stopped
from tests.chaos.runs import Momentum
from tests.faults import Fault
from tests.faults.rounds import DRIVER
from tests.hosts.hosts import until
from tests.sessions import frame

MEMBERS = 8
ROUNDS = 4
_ROWS = 96

_INDICES = {generator(member_seed(0, index), 0).initial_seed(): index for index in range(MEMBERS)}

_PLACES = {
    "fit": "sparkdl.ensembles.boosting.estimator.fit_members",
    "model": "sparkdl.ensembles.members.task_fits._model",
}


class Marked(nn.Module):
    """Two scores for three numbers; writes down which member begins and where, and lets faults happen to it.

    Its weights are so many that Spark leaves them with the executors until the driver fetches them.

    Args:
        folder: where ``faults`` is, what happens, and ``calls``: member, pid of the executor, host.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 1024), nn.Tanh(), nn.Dropout(0.2), nn.Linear(1024, 2))
        self.folder, self.batches = folder, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
            index = _INDICES[torch.initial_seed()]  # seeds of members are known, and nothing else of them is here
            if self.batches == 1:
                _note(self.folder, index, _executor(), os.uname().nodename)
            for fault in _faults(self.folder):
                if (fault.phase, fault.rank, fault.step) == ("batch", index, self.batches):
                    fault.strike()
        found: Tensor = self.inner(x)
        return found


def _faults(folder: str) -> list[Fault]:
    """They are no argument of the model: the ensemble is to be the same with other faults, and with none."""
    path = Path(folder, "faults")
    return [Fault(**fault) for fault in json.loads(path.read_text())] if path.exists() else []


def _executor() -> int:
    """The pid of the executor that this process works for."""
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path("/proc", str(pid), "cmdline").read_bytes():
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _note(folder: str, *words: object) -> None:
    with Path(folder, "calls").open("a", encoding="utf-8") as file:
        file.write(" ".join(map(str, words)) + "\n")


@dataclass(frozen=True)
class Begun:
    """A member that began: which, in which executor, on which host."""

    member: int
    executor: int
    host: str


def begun(folder: Path) -> list[Begun]:
    """The members that began, in order."""
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    return [Begun(int(member), int(executor), host) for member, executor, host in lines]


def times(folder: Path, members: int = MEMBERS) -> list[int]:
    """How often each member began."""
    found = [each.member for each in begun(folder)]
    return [found.count(member) for member in range(members)]


def finished(run: Path) -> set[int]:
    """The members of which a task has kept what came of them, or a fit of the driver."""
    return {int(path.name[-5:]) for kind in ("member", "model") for path in (run / "members").glob(f"{kind}-?????")}


# ---- what drivers are told to call -----------------------------------------------------------------------------------


def bagged(
    folder: str, run: str | None, faults: Sequence[dict[str, Any]] = (), members: int = MEMBERS, away: bool = False
) -> dict[str, Any]:
    """Train a bagging of networks, or go on with it.

    Args:
        folder: for marks and calls.
        run: the ``runDir``.
        faults: the fields of each ``Fault``.
        members: how many.
        away: wait now and then until no executor is left; see ``_all_leave``.
    """
    given = _given(folder, faults)
    ensemble = Bagging(base=network(folder), numModels=members, idCol="id", runDir=run)
    with at_places(given), _all_leave() if away else at_places(()):
        return outcome(ensemble.fit(rows()), rows())


def bagged_until_told(folder: str, run: str, faults: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """``bagged`` in a job that heeds SIGTERM."""
    with stoppable():
        try:
            return bagged(folder, run, faults)
        except Stopped as error:
            print("stopped:", error, flush=True)
            sys.exit(TERMINATED)


def boosted(
    folder: str, run: str | None, faults: Sequence[dict[str, Any]] = (), networks: bool = False
) -> dict[str, Any]:
    """Boost trees of one split, or networks, or go on with it; see ``bagged``."""
    given = _given(folder, faults)
    base: Any = network(folder, weightCol="w") if networks else DecisionTreeClassifier(maxDepth=1, weightCol="w")
    ensemble = Boosting(base=base, numModels=ROUNDS, idCol="id", runDir=run)
    data = rows().withColumn("features", array_to_vector("x"))
    with at_places(given), _warnings("sparkdl.ensembles.boosting.running_sums") as warnings:
        return {**outcome(ensemble.fit(data), data), "warnings": warnings}


def _given(folder: str, faults: Sequence[dict[str, Any]]) -> list[Fault]:
    Path(folder, "faults").write_text(json.dumps(faults))
    return [Fault(**fault) for fault in faults]


def network(folder: str, **more: Any) -> TorchClassifier:
    """The base of networks."""
    return TorchClassifier(
        model=partial(Marked, folder),
        optimizer=partial(Momentum, lr=0.1),
        inputCols=["x"],
        batchSize=16,
        epochs=2,
        **more,
    )


def rows() -> DataFrame:
    """Rows in two classes that no single split tells apart, in three partitions that were shuffled."""
    draw = np.random.default_rng(11)
    x = draw.normal(size=(_ROWS, 3))
    label = (x @ [1.0, -1.0, 0.5] + 0.4 * draw.normal(size=_ROWS) > 0).astype(np.float64)
    arrays = {"id": np.arange(_ROWS), "x": x, "label": label, "w": draw.uniform(0.5, 2.0, _ROWS)}
    return frame(arrays).repartition(3, "id")


def outcome(model: EnsembleModel, data: DataFrame) -> dict[str, Any]:
    """What two runs have to be equal in, and under ``report`` what they need not."""
    found = model.transform(data).select("id", "rawPrediction", "probability", "prediction").orderBy("id").collect()
    return {
        "members": [_digest(member) for member in model.models],
        "weights": [float(weight).hex() for weight in model.weights],
        "history": [{key: value for key, value in row.items() if key in ("error", "weight")} for row in model.history],
        "predictions": hashlib.sha256(repr([tuple(row) for row in found]).encode()).hexdigest(),
        "report": {name: model.report[name] for name in ("trained", "restored")},
    }


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two outcomes have the same bits."""
    return all(found[name] == expected[name] for name in ("members", "weights", "history", "predictions"))


def _digest(member: Model) -> str:
    if isinstance(member, EnsembleModel) or not hasattr(member, "module"):
        return hashlib.sha256(member.toDebugString.partition("\n")[2].encode()).hexdigest()  # type: ignore[attr-defined]
    tensors = member.module().state_dict()
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors.values())).hexdigest()


# ---- places in the driver --------------------------------------------------------------------------------------------


@contextmanager
def at_places(faults: Sequence[Fault]) -> Iterator[None]:
    """A block in which faults happen to the driver."""
    with pytest.MonkeyPatch.context() as patch:
        for phase in {fault.phase for fault in faults if fault.rank == DRIVER}:
            patch.setattr(_PLACES[phase], _striking(phase, faults))
        yield


def _striking(phase: str, faults: Sequence[Fault]) -> Any:
    path, _, name = _PLACES[phase].rpartition(".")
    plain = getattr(importlib.import_module(path), name)
    reached = count()

    def striking(*given: Any, **named: Any) -> Any:
        step = next(reached)
        for fault in faults:
            if (fault.phase, fault.rank, fault.step) == (phase, DRIVER, step):
                fault.strike()
        return plain(*given, **named)

    return striking


@contextmanager
def _all_leave() -> Iterator[None]:
    """A block in which dynamic allocation takes all executors away when rows are packed, and when members are trained.

    Each time the driver waits for it.
    """
    jvm = SparkSession.active().sparkContext._jsc.sc()
    look, model, left = task_fits.inspect_shards, task_fits._model, list[str]()

    def leave(when: str) -> None:
        if when not in left:  # what is in the memory's status then is the driver
            until(lambda: jvm.getExecutorMemoryStatus().size() == 1, f"no executor when members are {when}")
            left.append(when)

    def looked(*given: Any) -> Any:
        found = look(*given)
        leave("not yet trained")
        return found

    def made(*given: Any) -> Any:
        leave("trained")
        return model(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_fits, "inspect_shards", looked)
        patch.setattr(task_fits, "_model", made)
        yield
    assert len(left) == 2


@contextmanager
def _warnings(name: str) -> Iterator[list[str]]:
    """What a logger warns of in the block."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger(name).removeHandler(handler)
