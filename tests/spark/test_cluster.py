"""Gangs on Spark: the contract of clusters, and what only Spark can get wrong."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest
from pyspark import BarrierTaskContext

from sparkdl.errors import InvalidInput, WorkerFailed, WorkerLost
from sparkdl.spark import cluster as spark_cluster
from sparkdl.spark import rendezvous
from sparkdl.spark.barrier import BarrierTask
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event import Event
from sparkdl.training.strategies.allreduce import AllReduce
from tests.contracts import work
from tests.contracts.cluster_contract import ClusterContract
from tests.contracts.strategy_contract import CASES, Case, assert_equal, numbers, single_process, together
from tests.sessions import conf, frame

SOUR = work.Fails(0, ValueError("the milk is sour"))


@pytest.fixture
def cluster(spark):
    return SparkCluster(spark, 2)


class TestSparkCluster(ClusterContract):
    def make_data(self, arrays):
        return frame(arrays)


@pytest.mark.slow
def test_training_on_spark_is_single_process(cluster):
    case = CASES["three pieces, class weights"]
    training = case.training(AllReduce())
    workers = cluster.gang(work.Fit(training), frame(numbers()), case.columns())
    expected = single_process(training, numbers(), case.columns(), together(workers))
    for worker in workers:
        assert_equal(worker["parameters"], expected, case.tolerance)


@dataclass(frozen=True)
class Counting(BarrierTask):
    """Fails unless a worker calls ``allGather`` once if nobody else gathers, else never: a call costs a second."""

    def run(self, batches: Iterable[pa.RecordBatch], began: float) -> Iterator[pa.RecordBatch]:
        gather, calls = BarrierTaskContext.allGather, list[str]()

        def counted(context: BarrierTaskContext, message: str = "") -> list[str]:
            calls.append(message)
            return gather(context, message)

        with patch.object(BarrierTaskContext, "allGather", counted), patch.object(BarrierTaskContext, "barrier", None):
            yield from super().run(batches, began)
        assert len(calls) == (self.task.endpoint is None and self.network is not None)


@pytest.mark.parametrize(("reached", "network"), [(True, ""), (False, ""), (False, "127.0.0.1")])
def test_workers_meet_through_driver_or_rank_0_or_once_through_spark(reached, network, spark, cluster, monkeypatch):
    monkeypatch.setattr(spark_cluster, "BarrierTask", Counting)
    if not reached:
        monkeypatch.setattr(cluster, "_channel", lambda *_: nullcontext())
    events: list[Event] = []
    with conf(spark, "spark.sparkdl.network", network):
        shards = cluster.gang(work.rows, frame(numbers(20)), ["x", "y"], listener=events.append)
    assert sum(shard["rows"] for shard in shards) == 20
    imports = {event.rank for event in events if event.payload.get("name") == "imports"}
    assert imports == ({0, 1} if reached else set())


def columns(cluster, data, row_id=None):
    """The rows of each worker, in their order."""
    return [shard["columns"] for shard in cluster.gang(work.rows, data, work.columns_of("x", "y", row_id=row_id))]


def test_same_data_gives_same_shards(spark, cluster):
    data = spark.range(0, 400, 1, 8).selectExpr("array(sin(id), cos(id), id / 400) as x", "sin(3 * id) as y")
    np.testing.assert_equal(columns(cluster, data), columns(cluster, data))


def test_ids_fix_order_for_any_partitioning(cluster):
    arrays = numbers(200)
    other = frame({name: array[::-1] for name, array in arrays.items()}).repartition(5, "y")
    np.testing.assert_equal(columns(cluster, other, "row"), columns(cluster, frame(arrays), "row"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2], ids=["side by side", "one after the other"])
def test_two_gangs_in_one_session(spark, size):
    gang = partial(columns, SparkCluster(spark, size), frame(numbers(40)), "row")
    alone = gang()
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(gang) for _ in range(2)]:
            np.testing.assert_equal(run.result(200), alone)
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
@pytest.mark.chaos
def test_gang_whose_python_processes_are_all_stopped_ends(cluster, monkeypatch):
    before = [worker["pid"] for worker in cluster.gang(work.who)]
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(cluster, "_timeout", 3.0)
    with pytest.raises(WorkerLost, match="no worker started in time"):
        cluster.gang(work.who)
    for pid in before:  # Spark kills them too, a little later
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    monkeypatch.setattr(cluster, "_timeout", 60.0)
    assert not {*before} & {worker["pid"] for worker in cluster.gang(work.who)}


@pytest.mark.slow
def test_worker_that_does_not_stop_hides_no_failure(cluster, monkeypatch):
    monkeypatch.setattr(spark_cluster, "_GRACE", 0.5)
    with pytest.raises(WorkerFailed, match="ValueError: the milk is sour") as caught:
        cluster.gang(lambda world, shard: signal.pause() if world.rank else SOUR(world, shard))
    assert caught.value.rank == 0
    assert "in give_up" in caught.value.trace
    assert cluster.gang(work.total) == [(3.0, 3.0)] * 2


def test_gang_runs_without_channel_to_driver_and_failure_shows_no_jvm(cluster, monkeypatch):
    monkeypatch.setattr(rendezvous, "Channel", Mock(side_effect=InvalidInput("nobody can listen here")))
    with pytest.warns(UserWarning, match="live progress is unavailable: nobody can listen here"):
        assert cluster.gang(work.total) == [(3.0, 3.0)] * 2
    with pytest.warns(UserWarning, match="live progress"), pytest.raises(WorkerFailed, match="is sour") as caught:
        cluster.gang(replace(SOUR, rank=1))
    assert "in give_up" in str(caught.value)
    assert not re.search("py4j|java", str(caught.value), re.IGNORECASE)
    assert caught.value.__cause__ is None


def test_gang_names_the_module_that_executors_lack():
    lost = RuntimeError("Python worker failed to connect back: No module named 'sparkdl.absent'")
    watch, reports = SimpleNamespace(gave_up=None, cancelled=False), SimpleNamespace(failures=[], started={}, size=1)
    found = str(spark_cluster._explained(lost, watch, reports, "sparkdl.absent"))  # type: ignore[arg-type]
    assert "has no module sparkdl.absent. Install" in found
    assert "spark.python.daemon.module=sparkdl.absent" in found


def test_invalid_arguments_raise(spark, cluster):
    with pytest.raises(InvalidInput, match="data is of type dict; expected a Spark DataFrame"):
        cluster.gang(work.rows, numbers(4), ["x"])


def left_on_disk(spark: Any) -> set[Path]:
    """Files of rows below the session's folder; Spark puts its own files into folders of folders."""
    paths = Path(spark.sparkContext._temp_dir).parents[1].rglob("*")
    return {path for path in paths if re.search(r"/(blockmgr-[^/]*/|tmp)[^/]*$", str(path)) and path.is_file()}


@pytest.mark.chaos
def test_interrupt_ends_job_and_nothing_else(spark, cluster):
    """Ctrl-C at the first sign of progress."""
    workers: dict[int, int] = {}
    interrupts, before = iter([signal.SIGINT]), left_on_disk(spark)
    case = Case(batch_size=10, epochs=1_000_000)

    def listener(event: Event) -> None:
        if event.kind == "started":
            workers[event.payload["pid"]] = os.pidfd_open(event.payload["pid"])
        if event.kind == "progress" and event.rank == 0:
            for number in interrupts:
                os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        cluster.gang(case.training(AllReduce()), frame(numbers()), case.columns(), listener=listener)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert len(workers) == 2
    # Their rows lie in files without a name, which are gone with them.
    assert [pid for pid, end in workers.items() if not select.select([end], [], [], 30.0)[0]] == []
    assert left_on_disk(spark) <= before
    assert cluster.gang(work.total) == [(3.0, 3.0)] * 2
