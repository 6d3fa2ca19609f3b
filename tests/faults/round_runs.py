"""The rounds that everything happens to: a small case for each algorithm, and what a run of it comes to.

Executors and processes import this: what is slow to import is left out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import SparkdlError
from sparkdl.io.files import Folder
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import LocalSGDSolver
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective
from tests.chaos.runs import Momentum
from tests.faults.fault import Fault
from tests.faults.rounds import Watched, check_calls

ROUNDS = 6
PARTS = 4
ROWS = 96

ALGORITHMS: dict[str, Any] = {
    "ParallelSGD": ParallelSGD(rounds=ROUNDS, shard_batch_size=4),
    "ConsensusADMM": ConsensusADMM(solver=LocalSGDSolver(batch_size=4)),
    "FederatedAveraging": FederatedAveraging("client", 0.5, ROUNDS, batch_size=2, momentum=0.5, quantize_bits=8),
    "LBFGS": LBFGS(l2=1e-3),
}


def net(drop: float) -> nn.Module:
    """Masks and weights that are not convex; ``[B, 4]`` to ``[B, 1]``."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(drop), nn.Linear(6, 1))


def objective(name: str) -> Objective:
    """What is minimised. The whole objective has no masks: it would not be the same twice."""
    factory = partial(net, 0.0 if name == "LBFGS" else 0.2)
    return Objective(factory, nn.MSELoss(), partial(Momentum, lr=0.02), precision="fp64")


def columns(name: str) -> Columns:
    """The columns of ``rows``; by client only where the algorithm asks for it."""
    client = InputColumn("client", "int64") if name == "FederatedAveraging" else None
    return Columns(
        (InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"), client=client, floating="float64"
    )


def rows() -> dict[str, np.ndarray]:
    """A regression, of twelve clients whose rows lie together."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(ROWS, 4))
    y = np.sin(x @ [1.0, -2.0, 0.5, 0.0]) + 0.1 * draw.normal(size=ROWS)
    return {"id": np.arange(ROWS), "x": x, "y": y, "client": np.arange(ROWS) // 8}


def checkpoints(folder: Path, name: str) -> Checkpoints:
    """Where a run in a folder is saved."""
    return Checkpoints(str(folder / "checkpoints"), run=name)


def run(
    cluster: Any,
    data: Any,
    folder: Path,
    name: str,
    faults: Sequence[Fault] = (),
    *,
    parts: int = PARTS,
    **options: Any,
) -> dict[str, Any]:
    """Run, or go on, in a folder.

    Args:
        cluster: where.
        data: ``rows``, as the cluster takes them.
        folder: of the run.
        name: of one of the ``ALGORITHMS``.
        faults: what happens; see ``Watched``.
        parts: into which the data are dealt out.
        options: of ``Rounds``; its ``listener`` is called when the run has kept a round.

    Returns:
        See ``outcome``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    watched = Watched(ALGORITHMS[name], str(folder), tuple(faults))
    also = options.pop("listener", None)

    def listener(row: dict[str, Any]) -> None:
        watched.kept(row)
        if also is not None:
            also(row)

    most = options.pop("max_rounds", ROUNDS) - watched.prepares
    given = {"memories": str(folder / "memories"), "max_rounds": most, "listener": listener} | options
    loop = Rounds(watched, objective(name), seed=3, checkpoints=checkpoints(folder, name), **given)
    with cluster.map_reduce(data, columns(name), parts=parts) as jobs:
        state, history = loop.run(jobs)
    return outcome(folder, name, state, history)


def outcome(folder: Path, name: str, state: Any, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What two runs have to be equal in, as JSON: every bit of state, history and memories, but no time."""
    memories = Folder.of(str(folder / "memories"))
    return {
        "state": hashlib.sha256(pack_state(state)).hexdigest(),
        "history": [{key: value for key, value in row.items() if key != "seconds"} for row in history],
        "memories": [hashlib.sha256(memories.read(each)).hexdigest() for each in saved(folder, name)["memories"]],
    }


def saved(folder: Path, name: str) -> dict[str, Any]:
    """What the newest checkpoint holds."""
    found = checkpoints(folder, name).latest()
    assert found is not None
    state: dict[str, Any] = unpack_state(found[1].read("rounds"))
    return state


def assert_as_if_nothing_had_happened(found: Any, expected: Any, folder: Path, name: str) -> None:
    """The same bits, no round run again that was kept, and checkpoints that are whole."""
    assert found == expected
    assert bool(found["memories"]) == (name == "ConsensusADMM")
    check_calls(folder, ROUNDS, PARTS)
    assert saved(folder, name)["done"] == ROUNDS
    for manifest in (folder / "checkpoints").glob("attempt-*/manifest.json"):
        checkpoints(folder, name).open(manifest.parent.name).verify()


def locally(folder: str, name: str, faults: Sequence[Fault], path: str) -> None:
    """What a driver does that is a process of its own and maps the parts itself.

    Args:
        folder: of the run.
        name: of the algorithm.
        faults: what happens.
        path: of the file for what ``run`` returns, or for its ``error``.
    """
    try:
        found = run(InlineCluster(), rows(), Path(folder), name, faults)
    except SparkdlError as error:
        Path(path).write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        sys.exit(1)
    Path(path).write_text(json.dumps(found))


def on_spark(folder: str, name: str, faults: Sequence[dict[str, Any]] = (), away: Sequence[int] = ()) -> dict[str, Any]:
    """What a driver with a session does; see ``run``.

    Args:
        folder: of the run.
        name: of the algorithm.
        faults: the fields of each ``Fault``.
        away: rounds after which it waits until dynamic allocation has taken every executor away.
    """
    from pyspark.sql import SparkSession

    from sparkdl.spark.cluster import SparkCluster
    from tests.hosts.hosts import until
    from tests.sessions import frame

    spark = SparkSession.active()

    def listener(row: dict[str, Any]) -> None:
        if row["round"] in away:  # what is left is the driver
            until(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 1, "no executor")

    given = [Fault(**fault) for fault in faults]
    return run(SparkCluster(spark, 2), frame(rows()), Path(folder), name, given, listener=listener)
