"""The progress bar and workers' log lines follow the events."""

from __future__ import annotations

import io
import logging
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.io.threads import in_background
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import RateLimiter, WorkerLogs, forwarding, level_of
from sparkdl.telemetry.progress_bar import Progress


def event(kind: str, clock: tuple[int, int, int] | None = None, **payload: Any) -> Event:
    named = None if clock is None else dict(zip(("epoch", "step", "samples"), clock, strict=True))
    return Event(kind, 0, 0, time.time(), named, payload)


def progress(epoch: int, step: int, **payload: Any) -> Event:
    given = {"epochs": 2, "steps": 5, "loss": 0.5, "rows_per_second": 1234.4} | payload
    return event("progress", (epoch, step, 8 * step), **given)


def shown(*events: Event) -> list[str]:
    """The line each time it was drawn; finished lines end with a newline."""
    stream = io.StringIO()
    with closing(Progress("fit", stream)) as line:
        for event in events:
            line(event)
    return stream.getvalue().replace("\n", "\n\r").split("\r")


OTHER_RANK = Event("progress", 1, 0, time.time(), {"epoch": 0, "step": 4, "samples": 8}, progress(0, 4).payload)
VALIDATED = event("epoch", (1, 5, 40), loss=0.25, valid_loss=0.75, accuracy=0.9)


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        ([progress(0, 1), progress(0, 3)], ["fit: epoch 1/2", "3/10", "loss=0.5000", "rows/s=1,234"]),
        ([progress(0, 1), progress(0, 4), progress(1, 6), progress(1, 10)], ["epoch 2/2", "10/10", "100%"]),
        ([progress(0, 1), OTHER_RANK], ["1/10"]),
        ([progress(0, 5), VALIDATED], ["5/10", "loss=0.2500", "valid_loss=0.7500"]),
        ([progress(0, 5), VALIDATED, progress(1, 7)], ["accuracy=0.9000", "valid_loss=0.7500", "loss=0.5000"]),
        ([progress(1, 9), event("epoch", (2, 10, 80), loss=0.25)], ["epoch 2/2"]),
        ([progress(0, 1, loss=None, rows_per_second=None, valid_x=[1])], ["loss=-", "rows/s=0", "valid_x=-"]),
        ([progress(1, 9), progress(0, 2, loss=0.75)], ["2/10", "loss=0.7500"]),
        ([event("started"), progress(0, 1)], ["workers=1"]),
        ([replace(OTHER_RANK, kind="started"), event("failed"), event("started"), progress(0, 1)], ["workers=2"]),
        ([replace(progress(0, 1), attempt=1)], ["fit, attempt 2: epoch 1/2"]),
        ([event("round", round=2, rounds=4, primal=0.25, clients=3, seconds=1.0)], ["2/4", "50%", "primal=0.25"]),
        ([event("round", round=3, rounds=None, loss=0.5)], ["3round"]),
    ],
)
def test_line_shows(events: list[Event], parts: list[str]) -> None:
    last = shown(*events)[-2]
    for part in parts:
        assert part in last


def test_default_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    line = Progress("transform")
    line.close()
    for _ in range(2):
        line(progress(0, 1))
        line.close()
        line.close()
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("transform: epoch 1/2") >= 2


def test_bar_whose_stream_failed_is_freed_in_any_thread() -> None:
    stream = io.StringIO()
    stream.write = write = Mock(wraps=stream.write)  # type: ignore[method-assign]
    bar = Progress(stream=stream)
    bar(progress(0, 1))
    write.side_effect = OSError("gone")
    failed = in_background(partial(bar, progress(0, 2)), "the progress bar")
    assert isinstance(failed.exception(10), OSError)  # and its thread keeps the lock
    in_background(bar._bar.__del__, "any thread").result(10)


def test_wait_is_shown_until_progress() -> None:
    first, later = (event("waiting", what="2 task slots", seconds=seconds) for seconds in (3.4, 9.0))
    drawn = shown(first, later)
    assert drawn == ["", "fit: waiting for 2 task slots, 3 s", "fit: waiting for 2 task slots, 9 s\n", ""]
    drawn = shown(first, progress(0, 1), later)
    assert drawn[1] == "fit: waiting for 2 task slots, 3 s\n"
    assert not any("waiting" in line for line in drawn[2:])


def test_logs_have_few_lines_of_a_long_wait() -> None:
    drawn = shown(*(event("waiting", what="2 task slots", seconds=seconds / 4) for seconds in range(8, 4000)))
    assert len(drawn) < 30
    assert "fit: waiting for 2 task slots, 900 s" in "".join(drawn)


def test_tasks_are_shown_until_progress() -> None:
    first, last = event("tasks", running=12, ended=0, of=14), event("tasks", running=2, ended=12, of=14)
    drawn = shown(first, first, last, progress(0, 1), first)
    assert drawn[1] == "fit: 0 of 14 tasks have ended, 12 running"
    assert drawn[2] == "fit: 12 of 14 tasks have ended, 2 running\n"
    assert not any("tasks" in line for line in drawn[3:])


def test_other_events_change_nothing() -> None:
    ended = event("epoch", (1, 5, 40), loss=1.0)
    assert shown(event("span", (0, 1, 8), name="forward"), event("progress"), ended, event("loss")) == [""]


def test_restart_shows_cause_and_resets_bar() -> None:
    restart = event("restart", cause="WorkerLost: rank 1 was killed", seconds=2.0)
    waiting, resized = event("waiting", what="2 task slots", seconds=3.0), event("resized", size=1, of=2)
    drawn = shown(progress(1, 7), restart, waiting, resized, progress(1, 6))
    assert "fit: WorkerLost: rank 1 was killed; restart in 2 s\n" in drawn
    assert any("waiting for 2 task slots" in line for line in drawn)
    assert "fit: 1 of 2 workers start\n" in drawn
    assert "6/10" in drawn[-2]
    assert "fit: lost; restart now\n" in shown(event("restart", cause="lost", seconds=0.0))


def test_search_counts_trials_and_not_their_epochs() -> None:
    figures = {"ended": 2, "progress": {"running": "1", "best": "0.25 of trial 1"}}
    drawn = shown(event("trials", of=9), progress(0, 1), event("trial", trial=1, **figures), event("epoch", (1, 5, 40)))
    assert "2/9" in drawn[-2]
    assert "running=1, best=0.25 of trial 1" in drawn[-2]


def test_ensemble_counts_members_and_not_their_epochs() -> None:
    members, ended = event("members", count=3), event("epoch", (1, 5, 40))
    drawn = shown(members, progress(0, 1), event("member", member=0, seconds=1.0), ended)
    assert "1/3" in drawn[-2]
    assert "member" in drawn[-2]
    assert "epoch" not in "".join(drawn)
    assert "2/4" in shown(members, event("member"), event("members", count=1), event("member"))[-2]


# ---- workers' log lines on the driver --------------------------------------------------------------------------------


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
