"""Fixed bugs: a test for each, with its story."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
import torch
from pyspark.errors import PySparkException
from torch import nn
from torch.distributed import distributed_c10d

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.failure import Failure, WorkerResult
from sparkdl.cluster.group.rendezvous import RendezvousSpec, join, meet
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ErrorContext, InvalidInput, PeerLost, SparkdlError, Stopped, WorkerFailed, WorkerLost
from sparkdl.ml.run import Run
from sparkdl.serving.format.factory import Trust
from sparkdl.serving.format.param_values import allowed_types
from sparkdl.spark.cluster import SparkCluster, _explained, _FailureListener
from sparkdl.spark.job_watch import JobWatch
from sparkdl.telemetry.event import Event
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.objective import Objective
from tests.contracts import work
from tests.contracts.map_reduce_contract import ARRAYS, COLUMNS, ROWS, Raises, Sums, Whole
from tests.faults import Decode, Fault
from tests.listening import unreachable
from tests.object_store import object_store
from tests.sessions import abandon_call, frame


def test_gradients_outside_the_optimizer_piled_up() -> None:
    # Only the optimizer's zero_grad dropped gradients: those of other parameters grew, and clipping shrank each step.
    def head(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[2:], lr=0.0)

    objective = Objective(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), nn.MSELoss(), head)
    replica = Replicated().place(objective, World(), work.FEED)
    replica.gradients(Batch((torch.ones(2, 1),), torch.ones(2, 1), None, None, 2, 2.0, 1.0))
    replica.apply()
    assert [parameter.grad for parameter in replica.parameters] == [None] * 4


def test_missing_dependency_was_a_missing_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # If a model's module lacked a dependency, the error named the module that had been shipped.
    (tmp_path / "shipped.py").write_text("import not_shipped\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InvalidInput, match="No module named 'not_shipped'"):
        allowed_types("model").resolve({"name": "shipped:Net"}, Trust(modules=("shipped",)))


def test_run_on_an_object_store_with_options_lost_its_files(tmp_path: Path) -> None:
    # The file's name went behind the whole URI: the run asked for the region "us-east-1/report.json".
    with object_store(tmp_path) as query:
        Run(f"s3://key:secret@runs/digits?{query}").save("report", {"rows": 7})
    assert (tmp_path / "runs/digits/report.json").read_bytes() == b'{\n  "rows": 7\n}\n'


def test_relative_run_directory_differed_in_every_process(tmp_path, monkeypatch) -> None:
    # Workers resolved it in their own working directories, so its hosts seemed to share no directory.
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    checkpoints = Checkpoints("run/checkpoints", run="a run")
    travelled = cloudpickle.dumps(checkpoints)
    monkeypatch.chdir(tmp_path)
    assert cloudpickle.loads(travelled).folder.path == str(tmp_path / "driver" / "run" / "checkpoints")
    assert checkpoints.folder.path == cloudpickle.loads(travelled).folder.path


def test_rows_of_the_driver_were_all_in_shard_0(spark) -> None:
    # Spark's optimizer computes the rows of a pandas or Arrow table on the driver, as partition 0. Two tasks packed
    # shard 0.
    with SparkCluster(spark, 2).map_reduce(frame(ARRAYS), COLUMNS, shuffle=False) as jobs:
        assert jobs.shard_rows == (50, 51)
        [result] = jobs.each(Whole(), [0], all_rows=True)
    assert result.note["ids"] == list(range(ROWS))


@pytest.mark.parametrize("does", [Sums(), Raises()], ids=["sums", "raises"])
def test_lost_events_of_round_tasks_were_not_counted(spark, monkeypatch, does) -> None:
    # The jobs had no listener, and failed tasks reported no counts: a report without one event was called complete.
    monkeypatch.setattr(SparkCluster, "_channel", unreachable)
    events: list[Event] = []
    jobs = SparkCluster(spark, 2).map_reduce(frame(ARRAYS), COLUMNS, listener=events.append)
    with suppress(WorkerFailed), jobs as opened:
        opened.run(does, torch.tensor(1.0))
    lost = {event.rank: event.payload["dropped"] for event in events if event.kind == "outcome"}
    assert sorted(lost) == [0, 1]
    assert min(lost.values()) > 0


WATCH = SimpleNamespace(gave_up=None, cancelled=False)
CRASH = PySparkException("Could not recover from a failed barrier ResultStage: ResultTask(5, 1) crashed\n\tat a.b")


def failed(kind: str, rank: int, *, peer: bool) -> Event:
    failure = Failure(kind, "gone", "Traceback", ErrorContext("work", rank, "host", 1), peer, 1.0)
    return Event("failed", rank, 1, 0.0, None, failure.to_json())


def test_loss_of_worker_was_reported_as_loss_of_its_peers() -> None:
    # A killed worker reports nothing, while its peers report at once that a peer is lost. Their host was blamed.
    ear = _FailureListener(print, 2, 1)
    for rank in range(2):
        ear(Event("started", rank, 1, 0.0, None, {"pid": 1, "host": f"host{rank}"}))
    ear(failed("PeerLost", 0, peer=True))
    explained = _explained(CRASH, WATCH, ear)
    assert isinstance(explained, WorkerLost)
    assert (explained.rank, explained.host, explained.attempt) == (1, "host1", 1)
    ear(failed("ValueError", 0, peer=False))
    assert str(_explained(CRASH, WATCH, ear)).startswith("ValueError: gone")
    ear.close()


def test_failure_whose_event_came_after_its_result_counted_twice() -> None:
    # Events of files and of broken connections may be late. Two events of one rank are two failures.
    events: list[Event] = []
    ear = _FailureListener(events.append, 2, 1)
    late = failed("ValueError", 0, peer=False)
    for _ in range(2):
        ear(failed("ValueError", 1, peer=False))
    ear.note_results([WorkerResult(rank, failure=Failure.from_json(late.payload)) for rank in range(2)])
    ear(late)
    assert [event.rank for event in events] == [1, 1, 0]
    ear.close()


def test_result_above_the_limit_of_the_driver_was_a_lost_worker() -> None:
    # The gang trained again, four times in all.
    text = "Total size of serialized results of 2 tasks (2.0 GiB) is bigger than spark.driver.maxResultSize"
    explained = _explained(PySparkException(text), WATCH, _FailureListener(print, 2, 0))
    assert isinstance(explained, InvalidInput)
    assert "2.0 GiB" in explained.message


def test_worker_of_lost_host_had_no_rank() -> None:
    # The error named the task, but a worker without any event was not looked up.
    explained = _explained(CRASH, WATCH, _FailureListener(print, 2, 3))
    assert isinstance(explained, WorkerLost)
    assert (explained.stage, explained.rank, explained.host, explained.attempt) == ("launch", 1, None, 3)


@pytest.mark.chaos
def test_worker_stopped_before_rendezvous_held_up_barrier_stage(spark, tmp_path) -> None:
    # Such a worker has no heartbeat to miss, and Spark's allGather waits for a year.
    decode = Decode((Fault("stop", 0, 0, str(tmp_path / "mark"), "arrival"),))
    columns = Columns((InputColumn("x", decode=decode),))
    frame = spark.createDataFrame(pa.table({"x": pa.array([bytes(8)] * 4, pa.binary())}))
    events: list[Event] = []
    with pytest.raises(WorkerLost, match=r"never started: some workers did not join .* within 5 s") as caught:
        SparkCluster(spark, 2, timeout=5).gang(lambda world, shard: None, frame, columns, listener=events.append)
    [started] = {event.rank for event in events if event.kind == "started"}
    assert (caught.value.rank, caught.value.stage) == (1 - started, "launch")
    assert sum(SparkCluster(spark, 2).gang(lambda world, shard: shard.rows, frame, columns)) == 4


def test_dataframe_without_rows_was_an_index_error(spark) -> None:
    # Spark's optimizer replaces a plan without rows by an empty table: no task runs.
    rows = frame(ARRAYS).where("false")
    with pytest.raises(InvalidInput, match="the data has no rows"):
        SparkCluster(spark, 2).gang(work.who, rows, COLUMNS)


def test_error_in_data_was_its_own_cause(spark) -> None:
    # `raise error from error` makes a ring of causes.
    data = spark.range(4).selectExpr("if(id = 3, raise_error('no such row'), id) as x")
    with pytest.raises(PySparkException, match="no such row") as caught:
        SparkCluster(spark, 2).gang(work.rows, data, ["x"])
    assert caught.value.__cause__ is not caught.value
    assert not isinstance(caught.value, SparkdlError)


def test_worker_without_address_kept_the_others_waiting() -> None:
    # If rank 0 could not listen, it gave up before the rendezvous, for which the others waited.
    lines: list[str] = []

    def all_gather(line: str) -> list[str]:
        lines.append(line)
        return [line, json.dumps({"host": "b", "address": "127.0.0.1"})]

    elsewhere = "192.0.2.200"  # an address that no host has
    with pytest.raises(OSError, match="assign"):
        meet(RendezvousSpec(0, 2, "run", 0, elsewhere), all_gather)
    assert len(lines) == 1
    with pytest.raises(PeerLost, match=r"rank 0 cannot join: .*assign"):
        meet(RendezvousSpec(1, 2, "run", 0, "127.0.0.1"), lambda line: [lines[0], line])


def test_worker_that_failed_to_join_a_gang_joins_the_next_one_under_its_name():
    """
    torch counts process groups, and the count names the next one. If a worker died while the gang's group opened, the
    others had counted one more than the worker in its place, and each attempt waited for the other name.
    """
    spec = RendezvousSpec(0, 2, "run", 0, "127.0.0.1", timeout=1.0)
    with pytest.raises(PeerLost), join(spec, meet(spec, lambda line: [line, line])):
        raise AssertionError("nobody else joins")
    assert distributed_c10d.get_pg_count() == 0


@pytest.fixture
def query_failed(spark):
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        spark.sql("select 1 / id from range(1)").collect()


def test_failed_query_turned_logs_of_later_tests_into_json(query_failed, caplog) -> None:
    # If an error has a query context, pyspark makes a logger that has every handler, also pytest's, write JSON.
    logging.getLogger("sparkdl.tests").warning("as it is")
    assert "as it is\n" in caplog.text
    assert '"msg"' not in caplog.text


def test_workers_read_the_shards_of_all_one_by_one() -> None:
    # With n workers, rank 0 answered n * n requests.
    asked: list[list[str]] = []
    store = SimpleNamespace(set=lambda *_: None, multi_get=lambda keys: asked.append(keys) or [b"{}"] * len(keys))
    assert World(2, 3, store=store).all_gather_json("shards", {}) == [{}, {}, {}]
    assert asked == [["shards/0", "shards/1", "shards/2"]]


def test_cancellation_waited_for_the_job_within_its_lock() -> None:
    tags: list[str] = []
    session = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobsWithTag=tags.append))
    watch: Any = JobWatch(session, "run", 2, timeout=1.0, report=lambda *_: None)  # type: ignore[arg-type]
    token = CancellationToken()
    with token.stopping(watch.cancel):
        token.end(Stopped("enough"))  # the job's state cannot be asked for
    assert (tags, watch.cancelled) == (["run"], True)


def test_job_that_outlives_its_cancellation_went_unmentioned(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    session = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobsWithTag=str))
    watch: Any = JobWatch(session, "run", 2, timeout=1.0, report=lambda *_: None)  # type: ignore[arg-type]
    monkeypatch.setattr("sparkdl.spark.session.classic.ClassicSession.runs", lambda session, tag: True)
    monkeypatch.setattr("sparkdl.spark.job_watch.END_SECONDS", 0.0)
    watch.end()
    assert "the job run still runs 0 s after sparkdl cancelled it" in caplog.text


def test_time_limit_in_a_call_of_the_jvm_failed_all_later_tests(spark: Any) -> None:
    # py4j took the answer to the call that the limit cut off for the answer to the next call.
    def cut_off(*_: object) -> None:
        abandon_call()
        raise pytest.fail.Exception("the limit")

    before = signal.signal(signal.SIGUSR1, cut_off)
    try:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(pytest.fail.Exception, match="the limit") as kept:
            spark.sql("select java_method('java.lang.Thread', 'sleep', 60000L)").collect()  # calls the JVM at its end
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (spark.range(7).count(), kept.value.msg) == (7, "the limit")
