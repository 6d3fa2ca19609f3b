"""Outcomes on their way through the JVM: taken apart into rows of a size that travels, and put together again."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from sparkdl.cluster.failure import Failure, WorkerResult
from sparkdl.errors import ErrorContext, PeerLost
from sparkdl.spark.barrier import Rendezvous, _interruptible, _local_directory, assemble, pieces

LARGE = os.urandom((5 << 20) + 3)


def rows(*outcomes: WorkerResult) -> list[tuple[int, int, bytes]]:
    """The rows that the driver collects, in the order in which the tasks yield them."""
    return [
        (row["rank"], row["piece"], row["payload"])
        for outcome in outcomes
        for batch in pieces(outcome)
        for row in batch.to_pylist()
    ]


def by_rank(outcomes: list[WorkerResult]) -> list[WorkerResult]:
    return sorted(outcomes, key=lambda outcome: outcome.rank)


@pytest.mark.parametrize("value", [None, b"", b"x", LARGE], ids=["none", "empty", "small", "large"])
def test_round_trip(value):
    outcome = WorkerResult(3, value, seconds={"work": 1.5})
    assert assemble(rows(outcome)) == [outcome]


def test_a_failure_travels_whole():
    place = ErrorContext("work", 1, "host", 2, 7)
    outcome = WorkerResult(1, failure=Failure("ValueError", "no", "Traceback " + "x" * (3 << 20), place, False, 12.5))
    assert assemble(rows(outcome)) == [outcome]


def test_rows_come_in_any_order():
    outcomes = [WorkerResult(rank, LARGE[rank:]) for rank in range(4)]
    found = rows(*outcomes)
    for seed in range(3):
        random.Random(seed).shuffle(found)
        assert by_rank(assemble(found)) == outcomes


def test_a_large_outcome_is_many_small_rows():
    sizes = [len(payload) for _, _, payload in rows(WorkerResult(0, LARGE))]
    assert len(sizes) == 6
    assert max(sizes) <= 1 << 20


def test_payloads_may_be_what_spark_makes_of_binary():
    outcome = WorkerResult(0, LARGE)
    assert assemble([(rank, piece, bytearray(payload)) for rank, piece, payload in rows(outcome)]) == [outcome]


def test_nothing_collected_is_no_outcome():
    assert assemble([]) == []


def test_spools_lie_on_the_executors_local_disks(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{first},{second},{tmp_path / 'gone'}")
    assert _local_directory() in {str(first), str(second)}
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    assert _local_directory() is None
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert _local_directory() is None


def test_sparks_signal_ends_a_member_at_once_and_only_a_member():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _interruptible():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_rendezvous_is_an_exchange_with_a_limit():
    meet = Rendezvous(lambda line: [line, "other"], 60)
    assert meet("own") == ["own", "other"]
    failing = Rendezvous({}.__getitem__, 60)
    with pytest.raises(KeyError):
        failing("own")
    assert not meet.given_up
    assert not failing.given_up


def test_a_rendezvous_to_which_somebody_does_not_come_is_given_up():
    coming = threading.Event()
    meet = Rendezvous(lambda line: [line] * coming.wait(), 0.05)
    with pytest.raises(PeerLost, match=r"not all members came to the rendezvous within 0.05 s"):
        meet("own")
    assert meet.given_up
    coming.set()
