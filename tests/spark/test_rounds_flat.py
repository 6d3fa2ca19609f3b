"""Two hundred rounds cost no more at their end than at their beginning: plans, blocks and memory are flat."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from py4j.finalizer import ThreadSafeFinalizer
from torch import nn

from sparkdl.feed.columns import Column, Columns
from sparkdl.objective import Objective
from sparkdl.rounds.averaging import ParallelSGD
from sparkdl.rounds.run import Rounds
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.map_reduce import SparkJobs
from tests.cluster.hosts import until
from tests.sessions import frame

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS, EVERY = 200, 50
WIDTH = 128  # its weights, 64 kB and more, travel as a broadcast
COLUMNS = Columns((Column("x"),), Column("y"), row_id=Column("id", "int64"))


@dataclass(frozen=True)
class Measured:
    """What there is after a round."""

    round: int
    persisted: int  # RDDs
    cached: int  # plans
    broadcasts: int  # on the driver and the executors
    files: int  # of broadcasts, of the driver's Python
    proxies: int  # of objects of the JVM, in the driver's Python
    objects: int  # that Python's collector looks after
    resident: int  # bytes of the driver's Python
    heap: int  # bytes of the driver's JVM


def measure(spark: Any, number: int) -> Measured:
    context = spark.sparkContext
    gc.collect()
    until(lambda: _broadcasts(context) <= 4, "broadcasts that are destroyed")
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    return Measured(
        number,
        persisted=context._jsc.sc().getPersistentRDDs().size(),
        cached=spark._jsparkSession.sharedState().cacheManager().numCachedEntries(),
        broadcasts=_broadcasts(context),
        files=len(list(Path(context._temp_dir).iterdir())),
        proxies=len(ThreadSafeFinalizer.finalizers),
        objects=len(gc.get_objects()),
        resident=int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
        heap=runtime.totalMemory() - runtime.freeMemory(),
    )


def _broadcasts(context: Any) -> int:
    """Broadcasts of which there are blocks somewhere. Spark's own, of tasks, go when its garbage is collected."""
    context._jvm.java.lang.System.gc()
    stores = context._jsc.sc().env().blockManager().master().getStorageStatus()
    blocks = " ".join(store.blocks().keys().mkString(" ") for store in stores)
    return len(set(re.findall(r"broadcast_\d+", blocks)))


def data() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    rows = {name: draw.normal(size=(32, WIDTH)).astype(np.float32) for name in ("x", "y")}
    return {"id": np.arange(32), **rows}


def test_two_hundred_rounds(spark, monkeypatch):
    plans, measured = [], []
    collect = SparkJobs._collect

    def watched(self: SparkJobs, pieces: Any, *more: Any) -> None:
        plans.append(re.sub(r"#\d+L?|0x[0-9a-f]+|@[0-9a-f]+", "#", pieces._jdf.queryExecution().toString()))
        collect(self, pieces, *more)

    def listener(row: dict[str, Any]) -> None:
        if row["round"] and row["round"] % EVERY == 0:
            measured.append(measure(spark, row["round"]))

    monkeypatch.setattr(SparkJobs, "_collect", watched)
    objective = Objective(partial(nn.Linear, WIDTH, WIDTH), nn.MSELoss(), partial(torch.optim.SGD, lr=0.01))
    loop = Rounds(ParallelSGD(rounds=ROUNDS + 1, batch_size=16), objective, listener=listener)
    before = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
    with SparkCluster(spark, 2).map_reduce(frame(data()), COLUMNS, parts=2) as jobs:
        _, history = loop.run(jobs)
    assert len(history) == ROUNDS + 1
    print(*measured, sep="\n")
    # The first round writes the parts' files; every other one is one job, whose plan is always the same.
    assert len(plans) == ROUNDS + 1
    assert len(set(plans[1:])) == 1
    first, last = measured[0], measured[-1]
    assert {each.persisted for each in measured} == {before + 1}
    assert {each.cached for each in measured} == {first.cached}
    assert {each.files for each in measured} == {first.files}
    assert last.proxies <= first.proxies + 20
    assert last.objects <= first.objects + 2000
    assert last.resident <= first.resident + (16 << 20)
    assert last.heap <= first.heap + (48 << 20)
    assert spark.sparkContext._jsc.sc().getPersistentRDDs().size() == before
