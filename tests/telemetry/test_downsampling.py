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
from tests.telemetry.html import made


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
