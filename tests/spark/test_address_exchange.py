"""Workers' addresses through the driver's channel, without Spark."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pytest

from sparkdl.io.threads import in_background
from sparkdl.spark import address_exchange
from sparkdl.spark.address_exchange import AddressBook, DriverExchange
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.protocol import ProtocolError
from tests.listening import LONG, nobody

LINES = ["{}", "zwei ünd", "x" * 100_000]


@contextmanager
def driver(size, patience=LONG):
    """The endpoint of a driver that answers ``size`` workers, and its book."""
    book = AddressBook(size, patience)
    with Channel(lambda event: None, answer=book.answer) as channel, closing(book):
        yield channel.endpoint, book


def worker(endpoint, rank):
    """The result of a worker; ``allGather`` gives its rank."""
    return in_background(lambda: DriverExchange(endpoint, rank, 3, lambda line: [str(rank)])(LINES[rank]), "worker")


def test_workers_get_all_lines_in_rank_order():
    with driver(3) as (endpoint, _):
        workers = [worker(endpoint, rank) for rank in (2, 0, 1)]
        assert [answer.result(LONG) for answer in workers] == [LINES] * 3


def test_all_workers_fall_back_if_one_cannot_reach_driver(caplog):
    with driver(3, patience=0.05) as (endpoint, _):
        workers = [worker(None, 0), worker(nobody(), 1), worker(endpoint, 2)]
        assert [answer.result(LONG) for answer in workers] == [["0"], ["1"], ["2"]]
        assert worker(endpoint, 1).result(LONG) == ["1"]  # too late
    for reason, count in (("the driver has no channel", 1), ("cannot be reached", 1), ("some workers did not", 2)):
        assert caplog.text.count(reason) == count


def test_worker_falls_back_if_the_driver_does_not_answer(monkeypatch):
    monkeypatch.setattr(address_exchange, "PATIENCE", 0.05)
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


def test_single_worker_asks_nobody():
    assert DriverExchange(nobody(), 0, 1, [].index)("line") == ["line"]
