"""The driver's record of a run: what is shown, what is kept, what is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl.telemetry import event_log as module
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.recorder import Recorder, Told


def event(number: int, kind: str = "count", rank: int = 0, attempt: int = 0, **payload: object) -> Event:
    return Event(kind, rank, attempt, 1000.0 + number, None, {"number": number, **payload}, "a")


def test_events_are_shown_at_once_and_kept(tmp_path: Path) -> None:
    shown: list[Event] = []
    with EventLog(str(tmp_path), [shown.append]) as logbook:
        logbook(event(1))
        assert shown == [event(1)]
        logbook.note("begin", {"environment": {"python": "3"}})
    assert (logbook.received, logbook.dropped) == (2, 0)
    first, second = read_events(tmp_path)
    assert first == event(1)
    assert (second.kind, second.rank, second.payload) == ("begin", -1, {"environment": {"python": "3"}})
    assert second.received == second.time


def test_each_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    for number in range(3):
        with EventLog(str(tmp_path)) as logbook:
            logbook(event(number))
    assert len(list(tmp_path.iterdir())) == 3
    assert read_events(tmp_path) == [event(0), event(1), event(2)]


def test_a_view_that_fails_costs_neither_the_others_nor_the_file(tmp_path: Path, caplog) -> None:
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
    return event(99, "outcome", **vars(Told(recorder, last, kept, dropped)))


def test_events_that_did_not_come_are_counted_by_their_numbers() -> None:
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


def test_of_a_worker_that_died_the_lost_events_are_a_lower_bound() -> None:
    with EventLog() as logbook:
        for recorder in ("one", "two"):
            logbook(numbered(recorder, 1, "started"))
        logbook(numbered("two", 4))
        logbook(said("one", 1))
        assert (logbook.dropped, logbook.dropped_at_least) == (2, True)
        logbook(said("two", 4))
    assert (logbook.dropped, logbook.dropped_at_least) == (2, False)


def test_a_full_disk_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.uuid, "uuid4", lambda: type("Known", (), {"hex": "k" * 32}))
    monkeypatch.setattr(module.time, "strftime", lambda *_: "now")
    (tmp_path / "driver-now-kkkkkkkk.jsonl").symlink_to("/dev/full")
    shown: list[Event] = []
    with EventLog(str(tmp_path), [shown.append]) as logbook:
        for number in range(10):
            logbook(event(number))
    assert len(shown) == 10
    assert (logbook.received, logbook.dropped) == (10, 10)


def test_what_members_send_says_when_it_was_received(tmp_path: Path) -> None:
    with (
        EventLog(str(tmp_path)) as logbook,
        Channel(logbook) as channel,
        Recorder(channel.endpoint, rank=1) as recorder,
    ):
        recorder.record("hello")
    [found] = read_events(tmp_path)
    assert found.received is not None
    assert found.received >= found.time  # it is one host
    assert found.host
