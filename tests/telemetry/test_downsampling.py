"""Downsampling keeps sums exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl.telemetry.downsampling import merged, thinned
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import DRIVER, open_event_file
from sparkdl.telemetry.event_reader import read_events


def step(number: int, rank: int = 0, attempt: int = 0, **seconds: float) -> Event:
    told = {
        "steps": 2,
        "rows": 10,
        "bytes": 100,
        "seconds": seconds or {"forward": 0.5},
        "start": float(number),
        "marks": [["forward", 0.0]],
        "end": 0.5,
    }
    return Event("step", rank, attempt, 1000.0 + number, {"epoch": 0, "step": number, "samples": number}, told, "a")


def progress(number: int, rank: int = 0) -> Event:
    return Event("progress", rank, 0, 1000.0 + number, None, {"loss": 1.0, "steps": 1}, "a")


def sums(events: list[Event]) -> Counter[str]:
    found: Counter[str] = Counter()
    for event in events:
        if event.kind == "step":
            found.update({name: event.payload[name] for name in ("steps", "rows", "bytes")})
            found.update(event.payload["seconds"])
    return found


def test_merged_steps_add_up_and_keep_later_detail() -> None:
    found = merged(step(1, forward=1.0, feed=0.5), step(2, forward=2.0, exchange=0.25))
    assert found.clock == {"epoch": 0, "step": 2, "samples": 2}
    assert found.payload["seconds"] == {"forward": 3.0, "feed": 0.5, "exchange": 0.25}
    assert (found.payload["steps"], found.payload["rows"], found.payload["bytes"]) == (4, 20, 200)
    assert (found.payload["start"], found.time) == (2.0, 1002.0)


@pytest.mark.parametrize("count", [1000, 4321])
def test_sums_of_many_are_exact_for_every_worker(count: int) -> None:
    events = [step(number, rank, attempt=rank) for number in range(count) for rank in (0, 1)]
    malformed = [Event("step", 0, 0, 1.0, None, {"value": 3}), Event("span", 0, 0, 1.0, None, {"truncated": 1 << 21})]
    found = thinned(malformed + events, 100)
    assert len(found) <= 102
    assert sums(found) == sums(events)
    for rank in (0, 1):
        own = [event for event in found if event.rank == rank]
        assert 20 <= len(own) <= 51
        assert {event.attempt for event in own} == {rank}
        assert own[-1].clock == {"epoch": 0, "step": count - 1, "samples": count - 1}


def test_rare_kinds_stay() -> None:
    rows = [Event("epoch", 0, 0, float(number), None, {"epoch": number}) for number in range(500)]
    found = thinned([*rows, *(progress(number) for number in range(500))], 100)
    assert [event for event in found if event.kind == "epoch"] == rows
    assert 20 <= len([event for event in found if event.kind == "progress"]) <= 101


def test_folder_is_downsampled(tmp_path: Path) -> None:
    taken = ((number, rank) for number in range(500) for rank in (0, 1))
    events = [replace(step(number, rank), recorder=str(rank), number=number + 1) for number, rank in taken]
    open_event_file(tmp_path, f"{DRIVER}1").append([event.to_json().encode() for event in events[:600]])
    open_event_file(tmp_path, "rank-0").append([event.to_json().encode() for event in events[590:] if event.rank == 0])
    open_event_file(tmp_path, "rank-1").append([event.to_json().encode() for event in events[590:] if event.rank == 1])
    assert len(read_events(tmp_path)) == 1000
    found = read_events(tmp_path, most=100)
    assert len(found) <= 110
    assert sums(found) == sums(events)
    assert found == sorted(found, key=lambda event: event.time)
