"""Events as JSON, in files, in the driver's record of a run, and downsampled."""

from __future__ import annotations

import json
import math
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.telemetry import event_file as module
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import DRIVER, open_event_file
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.event_reader import merged, read_events, thinned
from sparkdl.telemetry.recorder import EventCounts
from tests.listening import nobody
from tests.object_store import object_store
from tests.report import made


def event(at: int, kind: str = "count", **fields: Any) -> Event:
    return Event(kind, 0, 0, 1000.0 + at, None, {"at": at}, "a", **fields)


def lines(*events: Event) -> list[bytes]:
    return [event.to_json().encode() for event in events]


# ---- JSON: an event survives the way, whatever its payload holds -------------------------------------------------


def test_event_round_trips_through_json() -> None:
    event = Event("loss", 1, 2, 3.5, {"epoch": 0, "step": 7, "samples": 64}, {"value": 0.25, "names": ["a", "é\ud800"]})
    assert Event.from_json(event.to_json()) == event
    assert Event.from_json(event.to_json().encode()) == event
    assert math.isnan(Event.from_json(Event("loss", 0, 0, 0.0, None, {"value": math.nan}).to_json()).payload["value"])


def test_any_payload_can_be_written() -> None:
    loop: list[object] = []
    loop.append(loop)
    odd = Event("odd", 0, 0, 1.0, None, {"value": 1, "socket": socket.socket})
    assert Event.from_json(odd.to_json()).payload == {"value": 1, "socket": {"unserialisable": "builtins.type"}}
    for value in (loop, {("a", "b"): 1}, 10**5000):
        payload = Event.from_json(Event("odd", 0, 0, 1.0, None, {"value": value}).to_json()).payload
        assert "Error" in payload["unserialisable"]


def test_too_large_event_records_its_size() -> None:
    large = Event("dump", 3, 0, 1.0, {"epoch": 0, "step": 1, "samples": 2}, {"text": "x" * (1 << 20)})
    small = Event.from_json(large.to_json())
    whole = len(json.dumps(vars(large), separators=(",", ":")))
    assert (small.kind, small.rank, small.clock, small.payload) == ("dump", 3, large.clock, {"truncated": whole})


# ---- files --------------------------------------------------------------------------------------------------------


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    file = open_event_file(tmp_path / "events", "driver")
    assert read_events(tmp_path / "events") == []
    assert not list(tmp_path.iterdir())
    assert file.append(lines(event(1), event(2))) == 2
    assert read_events(tmp_path / "events") == [event(1), event(2)]
    assert file.append(lines(event(3))) == 1
    assert len(read_events(tmp_path / "events")) == 3
    file.close()


def test_event_in_two_files_is_read_once(tmp_path: Path) -> None:
    sent = replace(event(1), recorder="a", number=1)
    received, second = replace(sent, received=1001.5), replace(sent, rank=1, recorder="b")
    for name, recorded in (("driver-1", received), ("rank-0", sent), ("rank-1", second)):
        open_event_file(tmp_path, name).append(lines(recorded))
    events = read_events(tmp_path)
    assert events == [received, second]
    assert events[0].received == 1001.5


def test_truncated_line_is_skipped(tmp_path: Path) -> None:
    open_event_file(tmp_path, "driver").append(lines(event(1)))
    with (tmp_path / "driver.jsonl").open("ab") as stream:
        stream.write(lines(event(2))[0][:20])
    with pytest.warns(RuntimeWarning, match="are left out: 1, such as line 2 of"):
        assert read_events(tmp_path) == [event(1)]
    open_event_file(tmp_path, "driver").append(lines(event(3)))  # begins on a line of its own
    with pytest.warns(RuntimeWarning, match="are left out: 1, such as line 2 of"):
        assert read_events(tmp_path) == [event(1), event(3)]
    (tmp_path / "driver.jsonl").rename(tmp_path / f"{DRIVER}1.jsonl")
    (tmp_path / "rank-0.jsonl").write_bytes(lines(event(2))[0][:20])  # the driver may lack this event of a worker
    with pytest.warns(RuntimeWarning, match="are left out: 2, such as line 2 of"):
        assert len(read_events(tmp_path)) == 2


def test_full_disk_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "driver.jsonl").symlink_to("/dev/full")
    file = open_event_file(tmp_path, "driver")
    assert [file.append(lines(event(number))) for number in range(3)] == [0, 0, 0]
    file.close()
    assert caplog.text.count("driver.jsonl cannot be written") == 1
    assert "No space left" in caplog.text


# ---- object stores: there is no append, and lines become files of their own ----------------------------------------


@pytest.fixture
def folder(tmp_path: Path):
    with object_store(tmp_path) as query:
        yield f"s3://key:secret@runs/one?{query}"


def test_object_store_gets_collected_lines(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_event_file(folder, "driver")
    assert file.append(lines(event(1), event(2))) == 2
    file.flush()
    assert read_events(folder) == []
    monkeypatch.setattr(module, "SECONDS", 0.0)
    file.flush()
    assert read_events(folder) == [event(1), event(2)]
    monkeypatch.setattr(module, "SECONDS", 60.0)
    monkeypatch.setattr(module, "BYTES", 100)
    second = open_event_file(folder, "driver")  # as of another process: its files have other names
    second.append(lines(event(3)))
    second.flush()
    file.append(lines(event(4))[:1])
    file.close()
    assert read_events(folder) == [event(1), event(2), event(3), event(4)]
    assert file.lost == second.lost == 0


@pytest.mark.slow
def test_unreachable_store_counts_lost_lines_and_hides_credentials(caplog: pytest.LogCaptureFixture) -> None:
    options = f"endpoint_override=127.0.0.1:{nobody().port}&scheme=http&region=us-east-1"
    file = open_event_file(f"s3://key:secret@runs/x?{options}", "driver")
    assert file.append(lines(event(1), event(2))) == 2
    file.close()
    assert file.lost == 2
    assert str(file) == "s3://runs/x/driver.jsonl"
    assert "secret" not in caplog.text


# ---- the driver's record ------------------------------------------------------------------------------------------


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


# ---- downsampling keeps sums exact -----------------------------------------------------------------------------------


def step(number: int, rank: int = 0, attempt: int = 0, **seconds: float) -> Event:
    seconds = seconds or {"forward": 0.5}
    return made.step(number, rank, attempt=attempt, number=number, rows=10, sent=100, **seconds)


def sums(events: list[Event]) -> Counter[str]:
    total: Counter[str] = Counter()
    for payload in (event.payload for event in events if event.kind == "step"):
        total.update({name: payload[name] for name in ("steps", "rows", "bytes")} | payload["seconds"])
    return total


def test_merged_steps_add_up_and_keep_later_detail() -> None:
    later = step(2, forward=2.0, exchange=0.25)
    later.payload["steps"] = 3
    both = merged(step(1, forward=1.0, feed=0.5), later)
    assert both.payload["seconds"] == {"forward": 3.0, "feed": 0.5, "exchange": 0.25}
    assert (both.payload["steps"], both.payload["rows"], both.payload["bytes"]) == (4, 20, 200)
    assert (both.payload["start"], both.time, both.clock) == (later.payload["start"], later.time, later.clock)


@pytest.mark.parametrize("count", [1000, 4321])
def test_sums_of_many_are_exact_for_every_worker(count: int) -> None:
    events = [step(number, rank, attempt=rank) for number in range(count) for rank in (0, 1)]
    sample = thinned(events, 100)
    assert len(sample) <= 102
    assert sums(sample) == sums(events)
    for rank in (0, 1):
        worker = [event for event in sample if event.rank == rank]
        assert 20 <= len(worker) <= 51
        assert {event.attempt for event in worker} == {rank}
        assert worker[-1].clock == step(count - 1).clock


def test_rare_kinds_stay() -> None:
    rows = [Event("epoch", 0, 0, float(number), None, {"epoch": number}) for number in range(500)]
    sample = thinned([*rows, *(made.progress(number, 1.0, at=number) for number in range(500))], 100)
    assert [event for event in sample if event.kind == "epoch"] == rows
    assert 20 <= len([event for event in sample if event.kind == "progress"]) <= 101


def test_folder_is_downsampled(tmp_path: Path) -> None:
    numbers = ((number, rank) for number in range(500) for rank in (0, 1))
    events = [replace(step(number, rank), recorder=str(rank), number=number + 1) for number, rank in numbers]
    files = {f"{DRIVER}1": events[:600], "rank-0": events[590::2], "rank-1": events[591::2]}
    for name, lines in files.items():
        open_event_file(tmp_path, name).append([event.to_json().encode() for event in lines])
    assert len(read_events(tmp_path)) == 1000
    sample = read_events(tmp_path, most=100)
    assert len(sample) <= 110
    assert sums(sample) == sums(events)
    assert sample == sorted(sample, key=lambda event: event.time)
