"""Barrier tasks: results as rows that the JVM can carry, the rendezvous, addresses, and the Python worker."""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
import threading
import uuid
from contextlib import closing, contextmanager

import pytest

from sparkdl.cluster.failure import Failure, WorkerResult
from sparkdl.cluster.worker import WorkerTask
from sparkdl.errors import ErrorContext, PeerLost
from sparkdl.io.threads import in_background
from sparkdl.net.protocol import ProtocolError
from sparkdl.spark import rendezvous
from sparkdl.spark.barrier import Rendezvous, _interruptible, assemble, pieces
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.spark.rendezvous import AddressBook, DriverAllGather, rank_0_endpoint
from sparkdl.telemetry.channel import Channel
from tests.listening import LONG, nobody

LARGE = os.urandom((5 << 20) + 3)
PLACE = ErrorContext("work", 1, "host", 2, 7)


def rows(*outcomes: WorkerResult) -> list[tuple[int, int, bytearray]]:
    """The rows that the driver collects, with Spark's type for binary values."""
    batches = (batch for outcome in outcomes for batch in pieces(outcome))
    return [(row["rank"], row["piece"], bytearray(row["payload"])) for batch in batches for row in batch.to_pylist()]


def test_round_trip_in_small_rows_of_any_order():
    failure = Failure("ValueError", "no", "Traceback " + "x" * (3 << 20), PLACE, False, 12.5)
    large = [WorkerResult(rank, LARGE[rank:]) for rank in range(2)]
    outcomes = [*large, WorkerResult(2, b"", seconds={"work": 1.5}), WorkerResult(3, failure=failure)]
    packed = rows(*outcomes)
    assert max(len(payload) for *_, payload in packed) <= 1 << 20
    for seed in range(3):
        random.Random(seed).shuffle(packed)
        assert assemble(packed) == outcomes
    assert assemble([]) == []


def test_spools_lie_on_local_disks_of_executor(tmp_path, monkeypatch):
    disks = [tmp_path / "first", tmp_path / "second"]
    for disk in disks:
        disk.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{disks[0]},{disks[1]},{tmp_path / 'gone'}")
    assert [local_directory(index) for index in range(3)] == [str(disks[0]), str(disks[1]), str(disks[0])]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    assert local_directory(0) == tempfile.gettempdir()


def test_signal_of_spark_ends_worker_at_once():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _interruptible():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_rendezvous_passes_answers_and_errors_on_and_times_out():
    meet, failing = Rendezvous(lambda line: [line, "other"], 60), Rendezvous({}.__getitem__, 60)
    assert meet("own") == ["own", "other"]
    with pytest.raises(KeyError):
        failing("own")
    assert (meet.given_up, failing.given_up) == (False, False)
    coming = threading.Event()
    meet = Rendezvous(lambda line: [line] * coming.wait(), 0.05)
    with pytest.raises(PeerLost, match=r"some workers did not join the rendezvous within 0.05 s"):
        meet("own")
    assert meet.given_up
    coming.set()


def test_collector_ignores_imports_of_python_worker(spark):
    before = gc.get_freeze_count()
    freeze_imports.__wrapped__()  # outside a task
    assert gc.get_freeze_count() == before
    counts = SparkCluster(spark, 2).gang(lambda world, shard: (gc.get_freeze_count(), len(gc.get_objects())))
    for frozen, tracked in counts:
        assert frozen > 100_000
        assert tracked < frozen / 2


# ---- workers' addresses through the driver's channel, without Spark --------------------------------------------------


LINES = ["{}", "zwei ünd", "x" * 100_000]


@contextmanager
def driver(size, patience=LONG):
    """The endpoint of a driver that answers ``size`` workers, and its book."""
    book = AddressBook(size, patience)
    with Channel(lambda event: None, answer=book.answer) as channel, closing(book):
        yield channel.endpoint, book


def worker(endpoint, rank):
    """The result of a worker; ``allGather`` gives its rank."""
    return in_background(lambda: DriverAllGather(endpoint, rank, 3, lambda line: [str(rank)])(LINES[rank]), "worker")


def test_workers_get_all_lines_in_rank_order():
    with driver(3) as (endpoint, _):
        workers = [worker(endpoint, rank) for rank in (2, 0, 1)]
        assert [answer.result(LONG) for answer in workers] == [LINES] * 3


def test_all_workers_fall_back_if_one_cannot_reach_driver(caplog):
    with driver(3, patience=0.05) as (endpoint, _):
        workers = [worker(None, 0), worker(nobody(), 1), worker(endpoint, 2)]
        assert [answer.result(LONG) for answer in workers] == [["0"], ["1"], ["2"]]
        assert worker(endpoint, 1).result(LONG) == ["1"]  # too late
    for reason, count in (("the driver has no channel", 1), ("cannot be reached", 1), ("rank 0, rank 1 did not", 2)):
        assert caplog.text.count(reason) == count


def test_rendezvous_names_the_workers_that_did_not_come():
    forever = threading.Event()
    with driver(3, patience=0.05) as (endpoint, _):
        all_gather = DriverAllGather(endpoint, 0, 3, lambda line: [line] * forever.wait())
        meet = Rendezvous(all_gather, 2.0, lambda: all_gather.absent(["a", "b:7337", "c:7337"]))
        with pytest.raises(PeerLost, match=r"^rank 1 on b:7337, rank 2 on c:7337 did not join the rendezvous"):
            meet("{}")
    forever.set()


def test_worker_falls_back_if_the_driver_does_not_answer(monkeypatch):
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.05)
    with driver(3, patience=3 * LONG) as (endpoint, _):
        assert worker(endpoint, 0).result(LONG) == ["0"]


@pytest.mark.parametrize("question", [b"3 line", b"-1 line", b"x", b""])
def test_question_without_rank_raises(question):
    with pytest.raises(ProtocolError, match="expected 0 to 2"):
        AddressBook(3).answer(question)


def test_end_of_gang_releases_waiting_workers():
    with driver(3) as (endpoint, book):
        waiting = worker(endpoint, 0)
        with book._changed:
            assert book._changed.wait_for(lambda: book._lines, LONG)
    assert waiting.result(LONG) == ["0"]


# ---- workers' addresses through rank 0 -------------------------------------------------------------------------------


def peer(task, rank):
    """The result of a worker without the driver's channel; ``allGather`` gives its rank."""

    def gather():
        with rank_0_endpoint(task, rank, "127.0.0.1", ["127.0.0.1:7337"] * 3) as endpoint:
            return DriverAllGather(endpoint, rank, 3, lambda line: [str(rank)], waits=LONG)(LINES[rank])

    return in_background(gather, "worker")


def test_workers_meet_at_rank_0_if_the_driver_has_no_channel():
    """Rank 0 ends at once, when it has the lines."""
    task = WorkerTask(b"", 3, uuid.uuid4().hex)
    answers = [peer(task, rank) for rank in (2, 1, 0)]
    assert [answer.result(LONG) for answer in answers] == [LINES] * 3


def test_workers_fall_back_if_another_program_has_the_port_of_rank_0(caplog):
    task = WorkerTask(b"", 3, uuid.uuid4().hex)
    with rank_0_endpoint(WorkerTask(b"", 3, task.run), 0, "127.0.0.1", []):
        answers = [peer(task, rank) for rank in range(3)]
        assert [answer.result(LONG) for answer in answers] == [["0"], ["1"], ["2"]]
    assert caplog.text.count("cannot be reached") == 2


def test_single_worker_asks_nobody():
    assert DriverAllGather(nobody(), 0, 1, [].index)("line") == ["line"]
