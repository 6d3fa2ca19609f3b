"""Events and runs for the tests of the report page, made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from sparkdl.report import RunData
from sparkdl.telemetry.chrome_trace import DRIVER
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import open_event_file

START = 1_800_000_000.0


def event(kind: str, at: float, rank: int = DRIVER, *, attempt: int = 0, host: str = "one", **payload: Any) -> Event:
    """An event, ``at`` seconds after the start."""
    return Event(kind, rank, attempt, START + at, None, payload, host, START + at)


def step(
    end: float,
    rank: int = 0,
    *,
    rows: int = 0,
    sent: int = 0,
    attempt: int = 0,
    number: int | None = None,
    **seconds: float,
) -> Event:
    """A step event, ``end`` seconds after the start, with phases in their order and a clock if it has a number."""
    marks = [list(mark) for mark in zip(seconds, accumulate(seconds.values(), initial=0.0), strict=False)]
    total = sum(seconds.values())
    times = {"seconds": seconds, "start": START + end - total, "marks": marks, "end": total}
    recorded = event("step", end, rank, attempt=attempt, steps=1, rows=rows, bytes=sent, **times)
    return recorded if number is None else replace(recorded, clock={"epoch": 0, "step": number, "samples": 16 * number})


def progress(step: int, loss: float | None, *, attempt: int = 0, rank: int = 0, at: float = 0.0) -> Event:
    """The progress of a rank after a step; an epoch has ten."""
    recorded = event("progress", at, rank, attempt=attempt, epochs=5, steps=10, loss=loss, rows_per_second=100.0)
    return replace(recorded, clock={"epoch": step // 10, "step": step, "samples": 8 * step})


def run(*events: Event, name: str = "a run", **values: Any) -> RunData:
    return RunData(name, events=sorted(events, key=lambda event: event.time), **values)


def written(folder: Path, events: Iterable[Event] = (), **files: Any) -> str:
    """A run's directory, with these events and JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    if lines := [event.to_json().encode() for event in events]:
        assert open_event_file(folder / "events", "driver-made").append(lines) == len(lines)
    return str(folder)


def gang(name: str = "a gang", *, loss: float = 1.0, **values: Mapping[str, Any]) -> RunData:
    """A run of two workers that has everything: two epochs, a restart, a warning, a configuration."""
    rows = [
        {"epoch": epoch, "step": 10 * epoch, "samples": 80 * epoch}
        | {"loss": loss / epoch, "valid_loss": loss / epoch + 0.1}
        | {"accuracy": 1 - 0.2 / epoch, "valid_accuracy": 1 - 0.3 / epoch, "seconds": 5.0, "rows_per_second": 16.0}
        for epoch in (1, 2)
    ]
    events = [
        event("begin", 0, environment={"python": "3.11", "torch": "2.13"}),
        event("attempt", 0, size=2),
        *(event("started", 1, rank, pid=7) for rank in (0, 1)),
        *(event("span", 2, rank, name="feed", start=START + 1, seconds=1.0) for rank in (0, 1)),
        *(step(4 + rank, rank, rows=8, feed=0.5, forward=1.0, exchange=0.5) for rank in (0, 1)),
        *(progress(number, loss / number, at=4 + number / 10) for number in (1, 5, 9)),
        event("restart", 6, cause="WorkerLost: rank 1 was killed", seconds=1.0),
        event("attempt", 7, attempt=1, size=1),
        event("resized", 7, attempt=1, size=1, of=2),
        event("warning", 8, 0, attempt=1, message="a warning", process="p"),
        *(step(end, 0, rows=8, attempt=1, feed=0.5, forward=0.5, update=0.5) for end in (9.0, 10.0)),
        event("end", 12, error=None),
    ]
    report = {"seconds": 12.0, "rows": 100, "rows_per_second": 16.0, "restarts": 1, "workers": [2, 1], "bytes": 5_000}
    configuration = {"class": "TorchClassifier", "epochs": 2, "rate": loss}
    return run(*events, name=name, history=rows, report=report, configuration=configuration, **values)
