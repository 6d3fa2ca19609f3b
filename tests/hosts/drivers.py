"""What a driver on the first of several hosts calls in its session; arguments and results travel as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
from pyspark.sql import SparkSession
from torch import Tensor, nn

from benchmarks.hosts import until
from sparkdl import TorchClassifier
from sparkdl.cli.commands import run
from sparkdl.cluster.group.world import World
from sparkdl.cluster.shutdown import TERMINATED, stoppable
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.data.columns import InputColumn
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.resampling.bootstrap import member_seed
from sparkdl.errors import InvalidInput, Stopped, WorkerFailed
from sparkdl.io.merged_weights import merge_weights
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.session.errors import JVM_ERRORS
from tests.chaos import runs
from tests.contracts import work
from tests.faults import Fault, rounds
from tests.faults.fault import executor_of
from tests.sessions import frame

SILENCE = 5.0
"""Seconds without a heartbeat after which a worker counts as lost."""


def meet() -> dict[str, Any]:
    """A gang whose workers tell hosts, ranks and addresses of their connections, and one whose rank 1 fails."""

    def peers(world: World, shard: Shard | None) -> dict[str, Any]:
        world.group().sum_(torch.ones(1 << 20))
        sockets = psutil.Process().net_connections("tcp4")
        addresses = {socket.raddr.ip for socket in sockets if socket.status == psutil.CONN_ESTABLISHED}
        world.all_gather_json("looked", {})  # a worker that leaves closes its peers' connections
        return {"host": world.host, "rank": world.rank, "local_rank": world.local_rank, "connected": sorted(addresses)}

    cluster = SparkCluster(SparkSession.active(), 2)
    found = cluster.gang(peers)
    with pytest.raises(WorkerFailed) as caught:
        cluster.gang(work.Fails(1, ValueError("the milk is sour")))
    return {"workers": found, "failed": [caught.value.rank, caught.value.host]}


def fit(folder: str, *fault: Any) -> Any:
    """Train, or resume, ``tests.chaos.runs``, or say what is invalid; ``fault`` has the fields of a ``Fault``."""
    Path(folder).mkdir(exist_ok=True)
    spark, table = SparkSession.active(), runs.table()
    x = table["x"].cast(pa.list_(pa.float32()))
    numbered = table.set_column(0, "x", x).append_column("number", pa.array(range(runs.ROWS)))
    supervisor = Supervisor(SparkCluster(spark, 2), back_off=0.1, heartbeat_timeout=SILENCE)
    faults, reads = [Fault(*fault)] if fault else [], replace(runs.columns(), row_id=InputColumn("number", "int64"))
    try:
        trained = runs.fit(supervisor, Path(folder), *faults, data=spark.createDataFrame(numbered), reads=reads)
    except InvalidInput as error:
        return str(error)
    return {
        "weights": hashlib.sha256(merge_weights([worker.weights for worker in trained])).hexdigest(),
        "history": repr(runs.untimed(trained[0].history)),
        "failures": [[type(error).__name__, error.rank, error.host, str(error)] for error in supervisor.failures],
    }


def run_rounds(
    folder: str, faults: Sequence[dict[str, Any]] = (), away: Sequence[int] = (), unencrypted: bool = False
) -> dict[str, Any]:
    """Run, or resume, ``tests.faults.rounds``; after the rounds ``away``, wait until no executor is left."""
    spark = SparkSession.active()

    def listener(row: dict[str, Any]) -> None:
        if row["round"] in away:  # the one that is left is the driver
            until(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 1, "no executor")

    cluster, data = SparkCluster(spark, 2, allow_unencrypted=unencrypted), frame(rounds.rows())
    return rounds.run(cluster, data, Path(folder), [Fault(**fault) for fault in faults], listener=listener)


def doctor(*arguments: str) -> dict[str, Any]:
    """Run ``sparkdl doctor`` in this session, which outlives it."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(SparkSession, "stop", lambda *_: None)
        code = run("doctor", arguments)
    print(printed.getvalue(), flush=True)
    return {"code": code, "printed": printed.getvalue()}


def renew_python() -> None:
    """Let Spark find out that idle Python workers have ended: it fails a task for each."""
    context = SparkSession.active().sparkContext

    def works() -> bool:
        try:
            return context.parallelize(range(8), 8).map(str).count() == 8
        except JVM_ERRORS:
            return False

    until(works, "a job on new Python workers")


# ---- ensembles -------------------------------------------------------------------------------------------------------

MEMBERS = 8
_ROWS = 96
_INDICES = {generator(member_seed(0, index), 0).initial_seed(): index for index in range(MEMBERS)}


class Marked(nn.Module):
    """Two scores for three numbers; logs which member begins in which executor, and lets faults happen to it.

    Its weights are so many that Spark leaves them with the executors until the driver fetches them.

    Args:
        folder: of ``calls`` and ``faults``. Faults are no argument: they do not change which ensemble it is. Their
            phase is ``"batch"``, at the start of a member's batch of training, from 1; the rank is the member.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 1024), nn.Tanh(), nn.Dropout(0.2), nn.Linear(1024, 2))
        self.folder, self.batches = folder, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
            index = _INDICES[torch.initial_seed()]
            if self.batches == 1:
                with Path(self.folder, "calls").open("a", encoding="utf-8") as file:
                    file.write(f"{index} {executor_of(os.getpid())}\n")
            for fields in json.loads(Path(self.folder, "faults").read_text()):
                if (fields["rank"], fields["step"]) == (index, self.batches):
                    Fault(**fields).strike()
        scores: Tensor = self.inner(x)
        return scores


def begun(folder: Path, member: int) -> list[int]:
    """The executors in which a member began, in order."""
    lines = [line.split() for line in (folder / "calls").read_text().splitlines()]
    return [int(executor) for index, executor in lines if int(index) == member]


def finished(run: Path) -> set[int]:
    """The members that are kept."""
    return {int(path.name[-5:]) for path in (run / "members").glob("member-?????")}


def bagged(folder: str, run: str | None, faults: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Train, or resume, in a job that handles SIGTERM; ``folder`` is for marks and calls."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "faults").write_text(json.dumps(faults))
    base = TorchClassifier(
        model=partial(Marked, folder), optimizer=partial(runs.Momentum, lr=0.1), inputCols=["x"], batchSize=16, epochs=2
    )
    draw = np.random.default_rng(11)
    x = draw.normal(size=(_ROWS, 3))
    label = (x @ [1.0, -1.0, 0.5] + 0.4 * draw.normal(size=_ROWS) > 0).astype(np.float64)
    data = frame({"id": np.arange(_ROWS), "x": x, "label": label}).repartition(3, "id")
    with stoppable():
        try:
            model = Bagging(base=base, numModels=MEMBERS, idCol="id", runDir=run).fit(data)
        except Stopped as error:
            print("stopped:", error, flush=True)
            sys.exit(TERMINATED)
    states = [member.module().state_dict().values() for member in model.models]
    weights = [b"".join(tensor.numpy().tobytes() for tensor in tensors) for tensors in states]
    return {
        "weights": [hashlib.sha256(member).hexdigest() for member in weights],
        "trained": model.report["trained"],
        "restored": model.report["restored"],
    }
