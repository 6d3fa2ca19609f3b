"""Barrier tasks: results as rows that the JVM can carry, the rendezvous, and the Python worker."""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
import threading

import pytest

from sparkdl.cluster.failure import Failure, WorkerResult
from sparkdl.errors import ErrorContext, PeerLost
from sparkdl.spark.barrier import Rendezvous, _interruptible, assemble, pieces
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.python_worker import freeze_imports, local_directory

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


def test_rendezvous_passes_answers_and_errors_on():
    meet, failing = Rendezvous(lambda line: [line, "other"], 60), Rendezvous({}.__getitem__, 60)
    assert meet("own") == ["own", "other"]
    with pytest.raises(KeyError):
        failing("own")
    assert (meet.given_up, failing.given_up) == (False, False)


def test_rendezvous_times_out():
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
