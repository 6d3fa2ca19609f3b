"""The driver's record of a run: shown, kept and counted events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.recorder import EventCounts


def event(at: int, kind: str = "count", **fields: Any) -> Event:
    return Event(kind, 0, 0, 1000.0 + at, None, {"at": at}, "a", **fields)


def test_events_reach_views_at_once_and_file(tmp_path: Path) -> None:
    shown: list[Event] = []
    with EventLog(str(tmp_path), [shown.append]) as log:
        log(event(1))
        assert shown == [event(1)]
        log.note("begin", {"environment": {"python": "3"}})
    assert (log.received, log.dropped) == (2, 0)
    EventLog(str(tmp_path / "empty")).close()
    assert not (tmp_path / "empty").exists()
    first, second = read_events(tmp_path)
    assert first == event(1)
    assert (second.kind, second.rank, second.payload) == ("begin", -1, {"environment": {"python": "3"}})
    assert second.received == second.time


def test_failing_view_is_logged_once_and_affects_nothing_else(tmp_path: Path, caplog) -> None:
    def fail(_: Event) -> None:
        raise LookupError("no screen")

    shown: list[Event] = []
    with EventLog(str(tmp_path), [fail, shown.append]) as log:
        log(event(1))
        log(event(2))
    assert shown == read_events(tmp_path) == [event(1), event(2)]
    assert caplog.text.count("LookupError: no screen") == 1


def numbered(recorder: str, number: int, kind: str = "span") -> Event:
    return event(number, kind, recorder=recorder, number=number)


def outcome(recorder: str, last: int, kept: int = 0, dropped: int = 0) -> Event:
    return replace(event(99, "outcome"), payload=vars(EventCounts(recorder, last, kept, dropped)))


def test_missing_numbers_count_as_lost() -> None:
    with EventLog() as log:
        for number in (1, 2, 5):
            log(numbered("one", number))
        assert log.dropped == 2  # a gap is seen at once
        log(outcome("one", 6))
        assert log.dropped == 3
        log(outcome("two", 2))  # of which nothing came through
        log(outcome("three", 4, kept=4))  # a worker that could not reach the driver, with a file
        log(numbered("four", 1))
        log(outcome("four", 3, kept=3, dropped=1))  # it kept some that the driver has as well
    assert (log.dropped, log.dropped_at_least) == (6, False)


def test_lost_events_of_dead_worker_are_lower_bound() -> None:
    with EventLog() as log:
        for recorder in ("one", "two"):
            log(numbered(recorder, 1, "started"))
        log(numbered("two", 4))
        log(outcome("one", 1))
        assert (log.dropped, log.dropped_at_least) == (2, True)
        log(outcome("two", 4))
    assert (log.dropped, log.dropped_at_least) == (2, False)
