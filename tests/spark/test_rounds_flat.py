"""Two hundred rounds cost no more at their end than at their beginning: plans, blocks and memory are flat."""

from __future__ import annotations

import gc
import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from py4j.finalizer import ThreadSafeFinalizer
from py4j.protocol import Py4JError
from torch import nn

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.objective import Objective
from tests.hosts.hosts import until
from tests.sessions import frame

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS, EVERY = 200, 50
WIDTH = 128  # its weights, 64 kB and more, travel as a broadcast
SLACK = 300_000  # a few broadcasts, of which there have been fifty since
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"))


@dataclass(frozen=True)
class Measured:
    """What there is after a round."""

    round: int
    made: int  # RDDs so far, one for each step of a plan
    persisted: int  # RDDs
    cached: int  # plans
    stored: int  # bytes of blocks, broadcasts included, of the driver and the executors
    files: int  # of broadcasts, of the driver's Python
    proxies: int  # of objects of the JVM, in the driver's Python
    objects: int  # that Python's collector looks after
    resident: int  # bytes of the driver's Python
    heap: int  # bytes of the driver's JVM


def _cached(manager: Any) -> int:
    """How many plans are cached; of pyspark 4.0 whether any is."""
    try:
        return int(manager.numCachedEntries())
    except Py4JError:
        return int(not manager.isEmpty())


def measure(spark: Any, number: int, most: float) -> Measured:
    """What there is, once blocks come to ``most`` bytes: those that nobody needs any more go a little later."""
    context = spark.sparkContext
    gc.collect()
    until(lambda: _stored(context) <= most, f"blocks of at most {most} bytes")
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    return Measured(
        number,
        made=context._jsc.sc().newRddId(),
        persisted=context._jsc.sc().getPersistentRDDs().size(),
        cached=_cached(spark._jsparkSession.sharedState().cacheManager()),
        stored=_stored(context),
        files=len(list(Path(context._temp_dir).iterdir())),
        proxies=len(ThreadSafeFinalizer.finalizers),
        objects=len(gc.get_objects()),
        resident=int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
        heap=runtime.totalMemory() - runtime.freeMemory(),
    )


def _stored(context: Any) -> int:
    """Bytes of blocks in memory. Spark's own broadcasts, of tasks, go when its garbage is collected."""
    context._jvm.java.lang.System.gc()
    told = context._jsc.sc().getExecutorMemoryStatus().mkString(" ")
    return sum(int(most) - int(left) for most, left in re.findall(r"\((\d+),(\d+)\)", told))


def data() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    rows = {name: draw.normal(size=(32, WIDTH)).astype(np.float32) for name in ("x", "y")}
    return {"id": np.arange(32), **rows}


def test_two_hundred_rounds(spark):
    measured: list[Measured] = []

    def listener(row: dict[str, Any]) -> None:
        if row["round"] and row["round"] % EVERY == 0:
            most = measured[0].stored + SLACK if measured else math.inf
            measured.append(measure(spark, row["round"], most))

    objective = Objective(partial(nn.Linear, WIDTH, WIDTH), nn.MSELoss(), partial(torch.optim.SGD, lr=0.01))
    loop = Rounds(ParallelSGD(rounds=ROUNDS + 1, shard_batch_size=16), objective, listener=listener)
    before = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
    with SparkCluster(spark, 2).map_reduce(frame(data()), COLUMNS, parts=2) as jobs:
        _, history = loop.run(jobs)
    assert len(history) == ROUNDS + 1
    print(*measured, sep="\n")
    first, *others = measured
    # As many steps for the last fifty rounds as for the fifty before.
    assert len({after.made - this.made for this, after in zip(measured, others, strict=False)}) == 1
    assert {(each.persisted, each.cached, each.files) for each in others} == {
        (first.persisted, first.cached, first.files)
    }
    last = others[-1]
    assert last.proxies <= first.proxies + 20
    assert last.objects <= first.objects + 2000
    assert last.resident <= first.resident + (16 << 20)
    assert last.heap <= first.heap + (48 << 20)
    assert spark.sparkContext._jsc.sc().getPersistentRDDs().size() == before
