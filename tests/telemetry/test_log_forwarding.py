"""Workers' log lines on the driver."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import RateLimiter, WorkerLogs, forwarding, level_of


def line(message: str, level: str = "WARNING", logger: str = "app", left_out: int = 0, rank: int = 1) -> Event:
    payload = {"level": level, "logger": logger, "message": message, "left_out": left_out}
    return Event("log", rank, 0, 0.0, None, payload, "worker-3")


def test_records_of_level_and_above_are_sent(events) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    with forwarding(logging.WARNING):
        logging.getLogger("app").info("not this")
        logging.getLogger("app").warning("%d rows", 3)
        logging.getLogger("app.sub").error("bad")
    logging.getLogger("app").warning("nor this")
    with forwarding(level_of("off")):
        logging.getLogger("app").critical("nor this")
    assert (root.level, root.handlers) == before
    assert [event.payload for event in events] == [
        {"level": "WARNING", "logger": "app", "message": "3 rows", "left_out": 0},
        {"level": "ERROR", "logger": "app.sub", "message": "bad", "left_out": 0},
    ]


def test_info_sends_printed_lines(events, capsys) -> None:
    with forwarding(logging.INFO):
        logging.getLogger("app").info("this")
        print("one\ntwo", end="")
        print(" and a half")
        print("  ")
        sys.stdout.flush()
        print("and", end="")
    print("after")
    assert [event.payload["message"] for event in events] == ["this", "one", "two and a half", "and"]
    assert capsys.readouterr().out == "one\ntwo and a half\n  \nandafter\n"


def test_long_lines_are_cut_with_a_mark(events) -> None:
    with forwarding(logging.INFO):
        print("x" * 10_000)
        print("x" * 10_001)
        print(*["x" * 3_000] * 4, sep="", end=f"\n{' ' * 10_005}x")
        logging.getLogger("app").info("x" * 2_000_000)
    marks = [event.payload["message"].partition(" [")[2] for event in events]
    assert marks == ["", *(f"{n} more characters are not forwarded]" for n in (1, 2_000, 1_990_000, 6))]
    assert {len(event.payload["message"].partition(" [")[0]) for event in events[:4]} == {10_000}


def test_malformed_record_is_skipped(events, capsys) -> None:
    before = list(logging.getLogger().handlers)
    with forwarding(logging.WARNING):
        [handler] = [added for added in logging.getLogger().handlers if added not in before]
        for message, argument in (("%d rows", "three"), ("%s", "next")):
            handler.handle(logging.LogRecord("app", logging.WARNING, "app.py", 1, message, (argument,), None))
    assert [event.payload["message"] for event in events] == ["next"]
    assert "TypeError" in capsys.readouterr().err


def test_rate_limiter_allows_burst_then_rate() -> None:
    now = 0.0
    limiter = RateLimiter(rate=2.0, burst=3, now=lambda: now)
    assert [limiter.take() for _ in range(5)] == [0, 0, 0, None, None]
    now = 0.5
    assert [limiter.take() for _ in range(2)] == [2, None]
    now = 100.0
    assert [limiter.take() for _ in range(4)] == [1, 0, 0, None]


def test_level_names() -> None:
    assert [level_of(name) for name in ("debug", "info", "warning", "error", "off")] == [10, 20, 30, 40, None]
    with pytest.raises(InvalidInput, match="'loud'; expected one of debug, info, warning, error, off"):
        level_of("loud")


def test_driver_writes_ranks_and_counts_dropped_lines() -> None:
    now, stream = 0.0, io.StringIO()
    view = WorkerLogs(stream, RateLimiter(rate=1.0, burst=2, now=lambda: now))
    view(Event("loss", 0, 0, 0.0, None, {}))
    for event in (line("look out"), line("hello", "INFO", "print", rank=0), line("2"), line("3")):
        view(event)
    now = 1.0
    view(line("4", left_out=7))
    assert stream.getvalue().splitlines() == [
        "[rank 1, worker-3] WARNING app: look out",
        "[rank 0, worker-3] hello",
        "[9 lines of workers were dropped]",
        "[rank 1, worker-3] WARNING app: 4",
    ]
