"""Gangs on Spark: the contract of clusters, and what only Spark can get wrong."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed, WorkerLost
from sparkdl.spark import cluster as spark_cluster
from sparkdl.spark.barrier import BarrierTask
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event import Event
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import work
from tests.contracts.cluster_contract import ClusterContract
from tests.contracts.strategy_contract import SAMPLE, Case, SynchronousContract, numbers
from tests.sessions import frame, session

pytestmark = pytest.mark.timeout(240)

SOUR = work.Fails(0, ValueError("the milk is sour"))


@pytest.fixture
def cluster(spark):
    return SparkCluster(spark, 2)


class TestSparkCluster(ClusterContract):
    def make_data(self, arrays):
        return frame(arrays)


@pytest.mark.slow
class TestAllReduceOnSpark(SynchronousContract):
    cases = SAMPLE

    def make_data(self, arrays):
        return frame(arrays)

    def make_shards(self, shards):
        pytest.skip("Spark divides the rows itself")


@dataclass(frozen=True)
class Counting(BarrierTask):
    """Fails if a worker meets the others through Spark more than once: each time costs a second."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gather, calls = BarrierTaskContext.allGather, list[str]()

        def counted(context: BarrierTaskContext, message: str = "") -> list[str]:
            calls.append(message)
            return gather(context, message)

        with patch.object(BarrierTaskContext, "allGather", counted), patch.object(BarrierTaskContext, "barrier", None):
            yield from super().run(batches)
        assert len(calls) == 1


def test_workers_meet_through_spark_once(cluster, monkeypatch):
    monkeypatch.setattr(spark_cluster, "BarrierTask", Counting)
    shards = cluster.gang(work.rows, frame(numbers(20)), ["x", "y"])
    assert sum(shard["rows"] for shard in shards) == 20


def weights(cluster, data, row_id=None):
    """The weights, as bytes, after several epochs."""
    objective = Objective(work.Seeded(work.Net), torch.nn.MSELoss(), partial(torch.optim.Adam, lr=0.01))
    columns = Columns((InputColumn("x"),), InputColumn("y"), row_id=None if row_id is None else InputColumn(row_id))
    return cluster.gang(Training(objective, 16, 3, seed=3), data, columns)[0].weights


def test_same_data_gives_identical_weights(spark, cluster):
    data = spark.range(0, 400, 1, 8).selectExpr("array(sin(id), cos(id), id / 400) as x", "sin(3 * id) as y")
    assert weights(cluster, data) == weights(cluster, data)


def test_ids_fix_order_for_any_partitioning(cluster):
    arrays = numbers(200)
    other = frame({name: array[::-1] for name, array in arrays.items()}).repartition(5, "y")
    assert weights(cluster, other, "row") == weights(cluster, frame(arrays), "row")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2], ids=["side by side", "one after the other"])
def test_two_gangs_in_one_session(spark, size):
    gang = partial(SparkCluster(spark, size).gang, work.rows, frame(numbers(40)), work.columns_of("x", row_id="row"))
    alone = gang()
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(gang) for _ in range(2)]:
            for shard, expected in zip(run.result(200), alone, strict=True):
                np.testing.assert_array_equal(shard["columns"]["x"], expected["columns"]["x"])
    assert len(list(spark.sparkContext.statusTracker().getActiveJobsIds())) == 0


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_worker_is_named(cluster, rank):
    events = []
    with pytest.raises(WorkerLost) as caught:
        cluster.gang(work.Dies(rank), listener=events.append, attempt=3)
    assert (caught.value.rank, caught.value.attempt) == (rank, 3)
    started = {event.rank: event.payload for event in events if event.kind == "started"}
    assert caught.value.host == started[rank]["host"]
    assert "\tat " not in str(caught.value)
    assert ".scala" not in str(caught.value)
    assert not os.path.exists(f"/proc/{started[rank]['pid']}")
    assert cluster.gang(work.total) == [(3.0, 3.0)] * 2


@pytest.mark.slow
def test_worker_that_does_not_stop_hides_no_failure(cluster, monkeypatch):
    monkeypatch.setattr(spark_cluster, "_GRACE", 0.5)
    with pytest.raises(WorkerFailed, match="ValueError: the milk is sour") as caught:
        cluster.gang(lambda world, shard: signal.pause() if world.rank else SOUR(world, shard))
    assert caught.value.rank == 0
    assert "in give_up" in caught.value.trace
    assert cluster.gang(work.total) == [(3.0, 3.0)] * 2


def test_gang_runs_without_channel_to_driver_and_failure_shows_no_jvm(cluster, monkeypatch):
    monkeypatch.setattr(spark_cluster, "Channel", Mock(side_effect=InvalidInput("nobody can listen here")))
    with pytest.warns(UserWarning, match="live progress is unavailable: nobody can listen here"):
        assert cluster.gang(work.total) == [(3.0, 3.0)] * 2
    with pytest.warns(UserWarning, match="live progress"), pytest.raises(WorkerFailed, match="is sour") as caught:
        cluster.gang(replace(SOUR, rank=1))
    assert "in give_up" in str(caught.value)
    assert not re.search("py4j|java", str(caught.value), re.IGNORECASE)
    assert caught.value.__cause__ is None


def test_invalid_arguments_raise(spark, cluster):
    with pytest.raises(InvalidInput, match="data is of type dict; expected a Spark DataFrame"):
        cluster.gang(work.rows, numbers(4), ["x"])
    with pytest.raises(InvalidInput, match="size is 0; expected at least 1"):
        SparkCluster(spark, 0)


def interrupted(folder: str) -> dict[str, Any]:
    """A driver with Ctrl-C at the first sign of progress, and what is left of the job then."""
    workers: dict[int, int] = {}
    open_while_it_ran: list[str] = []

    def listener(event: Event) -> None:
        if event.kind == "started":
            workers[event.payload["pid"]] = os.pidfd_open(event.payload["pid"])
        if event.kind == "progress" and not open_while_it_ran:
            open_while_it_ran.extend(opened(folder))
            os.kill(os.getpid(), signal.SIGINT)

    def training(data: DataFrame, epochs: int) -> list[Any]:
        case = Case(batch_size=10, epochs=epochs)
        return SparkCluster(spark, 2).gang(case.training(AllReduce()), data, case.columns(), listener=listener)

    with session(folder) as spark:
        data = frame(numbers())
        with pytest.raises(KeyboardInterrupt):
            training(data, epochs=1_000_000)
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {
            "active jobs": list(spark.sparkContext.statusTracker().getActiveJobsIds()),
            "workers": len(workers),
            "still alive": [pid for pid, end in workers.items() if not select.select([end], [], [], 30.0)[0]],
            # Spark puts its own files into folders of folders.
            "left on disk": [str(path) for path in files if re.search(r"/(blockmgr-[^/]*/|tmp)[^/]*$", str(path))],
            "open while it ran": len(open_while_it_ran),
            "still open": opened(folder),
            "steps of the next training": training(data, epochs=1)[0].history[-1]["step"],
        }


def opened(folder: str) -> list[str]:
    """Files of Python processes, mapped or open, that lie in ``folder`` without a name any more."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"pyspark" not in (process / "cmdline").read_bytes():
                continue
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            maps = (process / "maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile
        result += [line for line in (*links, *maps) if folder in line and "(deleted)" in line]
    return result


@pytest.mark.chaos
@pytest.mark.timeout(330)
def test_interrupt_ends_job_and_nothing_else(driver, tmp_path):
    result = driver(interrupted, tmp_path, timeout=300).result
    assert result.pop("open while it ran") > 0
    assert result == {
        "active jobs": [],
        "workers": 2,
        "still alive": [],
        "left on disk": [],
        "still open": [],
        "steps of the next training": 5,
    }
