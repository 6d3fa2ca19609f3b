"""The driver's record of a run: shown, kept and counted events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.recorder import EventCounts


def event(number: int, kind: str = "count", rank: int = 0, attempt: int = 0, **payload: object) -> Event:
    return Event(kind, rank, attempt, 1000.0 + number, None, {"number": number, **payload}, "a")


def test_events_reach_views_at_once_and_file(tmp_path: Path) -> None:
    shown: list[Event] = []
    with EventLog(str(tmp_path), [shown.append]) as logbook:
        logbook(event(1))
        assert shown == [event(1)]
        logbook.note("begin", {"environment": {"python": "3"}})
    assert (logbook.received, logbook.dropped) == (2, 0)
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
    with EventLog(str(tmp_path), [fail, shown.append]) as logbook:
        logbook(event(1))
        logbook(event(2))
    assert shown == read_events(tmp_path) == [event(1), event(2)]
    assert caplog.text.count("LookupError: no screen") == 1


def numbered(recorder: str, number: int, kind: str = "span") -> Event:
    return replace(event(number, kind), recorder=recorder, number=number)


def said(recorder: str, last: int, kept: int = 0, dropped: int = 0) -> Event:
    return event(99, "outcome", **vars(EventCounts(recorder, last, kept, dropped)))


def test_missing_numbers_count_as_lost() -> None:
    with EventLog() as logbook:
        for number in (1, 2, 5):
            logbook(numbered("one", number))
        assert logbook.dropped == 2  # a gap is seen at once
        logbook(said("one", 6))
        assert logbook.dropped == 3
        logbook(said("two", 2))  # of which nothing came through
        logbook(said("three", 4, kept=4))  # a worker that could not reach the driver, with a file
        logbook(numbered("four", 1))
        logbook(said("four", 3, kept=3, dropped=1))  # it kept some that the driver has as well
    assert (logbook.dropped, logbook.dropped_at_least) == (6, False)


def test_lost_events_of_dead_worker_are_lower_bound() -> None:
    with EventLog() as logbook:
        for recorder in ("one", "two"):
            logbook(numbered(recorder, 1, "started"))
        logbook(numbered("two", 4))
        logbook(said("one", 1))
        assert (logbook.dropped, logbook.dropped_at_least) == (2, True)
        logbook(said("two", 4))
    assert (logbook.dropped, logbook.dropped_at_least) == (2, False)
