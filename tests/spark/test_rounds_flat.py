"""After a hundred rounds, plans, blocks and memory are as large as after twenty-five."""

from __future__ import annotations

import gc
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from py4j.finalizer import ThreadSafeFinalizer
from py4j.protocol import Py4JError
from torch import nn

from benchmarks.hosts import until
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.objective.objective import Objective
from tests.sessions import frame

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROUNDS, EVERY = 100, 25
WIDTH = 128  # its weights, 64 kB and more, travel as a broadcast
SLACK = 300_000  # bytes of a few broadcasts, of which there have been twenty-five since
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"))


def plans(manager: Any) -> int:
    """Number of cached plans; of pyspark 4.0 whether there is any."""
    try:
        return int(manager.numCachedEntries())
    except Py4JError:
        return int(not manager.isEmpty())


def measure(spark: Any, most: float) -> dict[str, int]:
    """Sizes of the driver, once blocks in memory have at most ``most`` bytes: unused ones are freed a little later."""
    context = spark.sparkContext
    java, runtime = context._jsc.sc(), context._jvm.java.lang.Runtime.getRuntime()

    def stored() -> int:
        context._jvm.java.lang.System.gc()
        status = java.getExecutorMemoryStatus().mkString(" ")
        return sum(int(all_) - int(left) for all_, left in re.findall(r"\((\d+),(\d+)\)", status))

    gc.collect()
    until(lambda: stored() <= most, f"blocks of at most {most} bytes")
    return {
        "rdds": java.newRddId(),  # made so far, one for each step of a plan
        "persisted": java.getPersistentRDDs().size(),
        "plans": plans(spark._jsparkSession.sharedState().cacheManager()),
        "blocks": stored(),
        "files": len(list(Path(context._temp_dir).iterdir())),
        "proxies": len(ThreadSafeFinalizer.finalizers),
        "objects": len(gc.get_objects()),
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
        "heap": runtime.totalMemory() - runtime.freeMemory(),
    }


def test_a_hundred_rounds(spark):
    measured: list[dict[str, int]] = []

    def listener(row: dict[str, Any]) -> None:
        if row["round"] and row["round"] % EVERY == 0:
            measured.append(measure(spark, measured[0]["blocks"] + SLACK if measured else math.inf))

    draw = np.random.default_rng(0)
    data = {name: draw.normal(size=(32, WIDTH)).astype(np.float32) for name in ("x", "y")}
    objective = Objective(partial(nn.Linear, WIDTH, WIDTH), nn.MSELoss(), partial(torch.optim.SGD, lr=0.01))
    loop = Rounds(ParallelSGD(rounds=ROUNDS + 1, shard_batch_size=16), objective, listener=listener)
    before = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
    with SparkCluster(spark, 2).map_reduce(frame({"id": np.arange(32), **data}), COLUMNS, num_shards=2) as jobs:
        _, history = loop.run(jobs)
    assert len(history) == ROUNDS + 1
    print(*measured, sep="\n")
    first, *others = measured
    assert len({after["rdds"] - this["rdds"] for this, after in zip(measured, others, strict=False)}) == 1
    for name in ("persisted", "plans", "files"):
        assert {sizes[name] for sizes in measured} == {first[name]}, name
    for name, more in (("proxies", 20), ("objects", 2000), ("resident", 16 << 20), ("heap", 48 << 20)):
        assert others[-1][name] <= first[name] + more, name
    assert spark.sparkContext._jsc.sc().getPersistentRDDs().size() == before
