"""The tail passes on what workers append to event files, once, and nothing of other fits."""

from __future__ import annotations

import logging
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import _ChunkedFile
from sparkdl.telemetry.event_tail import EventTail
from sparkdl.telemetry.recorder import Recorder


def recorder(folder: Path, rank: int = 0, attempt: int = 0) -> Recorder:
    return Recorder(None, rank=rank, attempt=attempt, fallback=folder)


def kinds(events: list[Event], rank: int = 0) -> list[str]:
    return [event.kind for event in events if event.rank == rank]


def test_events_arrive_while_workers_write_and_once(tmp_path: Path, nothing_is_left: Any) -> None:
    arrived: SimpleQueue[Event] = SimpleQueue()
    with EventTail(str(tmp_path / "events"), arrived.put) as tail:  # the folder does not exist
        with recorder(tmp_path / "events") as worker:
            worker.record("started", host="here")
            first = arrived.get(timeout=20)
            worker.record("epoch", loss=0.5)
        tail.close()
        tail.close()
    assert (first.kind, first.payload, first.received) == ("started", {"host": "here"}, None)
    assert [arrived.get_nowait().kind, arrived.empty()] == ["epoch", True]


def test_events_of_other_fits_and_attempts_do_not_count(tmp_path: Path) -> None:
    events: list[Event] = []
    with recorder(tmp_path) as ended:
        ended.record("old")
    with recorder(tmp_path, rank=1) as zombie:
        zombie.record("old")
        assert zombie.flush(20)
        with EventTail(str(tmp_path), events.append, attempt=1):
            zombie.record("late")
            with recorder(tmp_path, attempt=1) as worker, recorder(tmp_path, attempt=10) as later:
                worker.record("new")
                later.record("other")
        with EventTail(str(tmp_path), events.append):  # of any attempt, with the files of the fits before
            zombie.record("late")
            assert zombie.flush(20)
            for attempt in range(2):
                with recorder(tmp_path, attempt=attempt) as worker:
                    worker.record("again", attempt=attempt)
    assert [event.kind for event in events] == ["new", "again", "again"]
    assert [event.attempt for event in events] == [1, 0, 1]


def test_lines_of_killed_workers_and_half_written_lines_wait(tmp_path: Path) -> None:
    events: list[Event] = []
    lines = [Event(f"event{number}", 0, 0, 1.0, None, {}, recorder="one", number=number) for number in (1, 2, 3)]
    first, second, third = (event.to_json().encode() + b"\n" for event in lines)
    file = tmp_path / "rank-0.attempt-0.jsonl"
    file.write_bytes(b'{"kind": "half')
    tail = EventTail(str(tmp_path), events.append)
    with file.open("ab") as stream:
        stream.write(b"\n" + first + b"no event\n" + second[:9])
        stream.flush()
        tail._look()
        assert kinds(events) == ["event1"]
        stream.write(second[9:] + third[:-1])
    tail.close()
    assert kinds(events) == ["event1", "event2"]


def test_files_of_an_object_store_are_read_in_order(tmp_path: Path) -> None:
    events: list[Event] = []
    with EventTail(str(tmp_path), events.append, attempt=2):
        file = _ChunkedFile(str(tmp_path), "rank-4.attempt-2")
        for number in (1, 2):
            file.append([Event("epoch", 4, 2, 1.0, None, {}, recorder="one", number=number).to_json().encode()])
            file.flush(idle=True)
    assert [event.number for event in events] == [1, 2]


@pytest.mark.parametrize("begins", [True, False])
def test_unreadable_folder_costs_events_and_one_warning(begins: bool, tmp_path: Path, caplog: Any) -> None:
    folder, events = tmp_path / "events", list[Event]()
    folder.write_text("a file") if begins else folder.mkdir()
    with caplog.at_level(logging.WARNING), EventTail(str(folder), events.append) as tail:
        if not begins:
            folder.rmdir()
            folder.write_text("a file")
        for _ in range(2):
            tail._look()
    assert events == []
    assert [record.message.partition(" cannot")[0] for record in caplog.records] == [
        f"live events are missing, since {folder}"
    ]


def test_listener_that_raises_gets_the_next_event(tmp_path: Path, caplog: Any) -> None:
    seen: list[str] = []

    def listener(event: Event) -> None:
        seen.append(event.kind)
        raise ValueError("no view")

    with EventTail(str(tmp_path), listener), recorder(tmp_path) as worker:
        worker.record("one")
        worker.record("two")
    assert seen == ["one", "two"]
    assert caplog.text.count("raised at an event") == 1
