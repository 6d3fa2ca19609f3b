"""Events as a trace, on one clock."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from sparkdl.telemetry.chrome_trace import Clocks, trace
from sparkdl.telemetry.event import Event
from tests.report import made

NOW = made.START


def at(host: str, time: float, *, rank: int = 0, received: float | None = None, kind: str = "heartbeat") -> Event:
    return Event(kind, rank, 0, time, None, {}, host, received)


def step(host: str, rank: int, number: int, start: float, *, wait: float = 0.2, received: float | None = None) -> Event:
    """A step that waits for others after 0.1 seconds of computing."""
    phases = {"other": 0.0, "forward": 0.1, "exchange": wait, "update": 0.0}
    recorded = made.step(start - NOW + 0.1 + wait, rank, rows=8, sent=100, number=number, **phases)
    return replace(recorded, host=host, received=received)


# ---- one clock --------------------------------------------------------------------------------------------------


def test_offset_of_host_is_exact_to_shortest_delay() -> None:
    ways, offset = random.Random(0), 5.0
    events = [at("driver", NOW, rank=-1)]
    for number in range(200):
        sent = NOW + number
        events.append(at("far", sent + offset, received=sent + 0.0005 + ways.expovariate(100)))
    clocks = Clocks.of([*events, at("driver", NOW + 1, received=NOW + 1.5)])
    assert clocks.corrected("far", NOW + 100 + offset) == pytest.approx(NOW + 100, abs=0.002)
    assert clocks.corrected("driver", NOW + 7) == clocks.corrected("unknown", NOW + 7) == NOW + 7


def test_drifting_clock_is_corrected() -> None:
    events = [at("driver", NOW, rank=-1)]
    for number in range(100):
        sent = NOW + 60 * number
        events.append(at("far", sent + 1e-4 * 60 * number, received=sent + 0.001))  # 100 ppm: 0.6 s in the end
    clocks = Clocks.of(events)
    for number in (0, 50, 99):
        true = NOW + 60 * number
        assert clocks.corrected("far", true + 1e-4 * 60 * number) == pytest.approx(true, abs=0.07)


def test_exchanges_align_host_without_events_at_driver() -> None:
    events = [at("driver", NOW, rank=-1)]
    for number in range(1, 10):
        start = NOW + number
        events.append(step("a", 0, number, start + 3.0, wait=0.3, received=start + 0.4))
        events.append(step("b", 1, number, start - 2.0 + 0.1, wait=0.2))  # later, so that it waits less
    clocks = Clocks.of(events)
    assert clocks.corrected("a", NOW + 3.0) == pytest.approx(NOW, abs=0.001)
    assert clocks.corrected("b", NOW - 2.0) == pytest.approx(NOW, abs=0.001)
    alone = Clocks.of([replace(event, received=None) for event in events[1:]])  # relative to the lowest rank's host
    assert alone.corrected("a", NOW + 3.0) == NOW + 3.0
    assert alone.corrected("b", NOW - 2.0) == pytest.approx(NOW + 3.0, abs=1e-6)


# ---- the trace --------------------------------------------------------------------------------------------------


def test_threads_have_separate_rows() -> None:
    threads = {"work": {}, "save checkpoint": {"thread": "saver"}, "read": {"thread": "feeder"}}
    spans = [made.event("span", 2, 1, name=name, start=NOW, seconds=2.0, **more) for name, more in threads.items()]
    entries = trace(spans)["traceEvents"]
    rows = {entry["args"]["name"]: entry["tid"] for entry in entries if entry["name"] == "thread_name"}
    assert set(rows) == {"steps", "stages", "saver", "feeder"}
    assert len(set(rows.values())) == 4
    actual = {entry["name"]: entry["tid"] for entry in entries if entry["ph"] == "X"}
    assert actual == {"work": rows["stages"], "save checkpoint": rows["saver"], "read": rows["feeder"]}


def test_trace_of_numbers_that_json_lacks_is_valid() -> None:
    odd = [
        Event("epoch", 0, 0, NOW, None, {"loss": float("nan")}, "a"),
        Event("progress", 0, 0, NOW, None, {"loss": float("inf")}, "a"),
    ]
    timeline = trace([*odd, step("a", 0, 1, NOW + 1)])
    assert json.loads(json.dumps(timeline, allow_nan=False)) == timeline
    assert [entry["args"]["loss"] for entry in timeline["traceEvents"] if entry["name"] == "epoch"] == ["nan"]
    phases = [entry for entry in timeline["traceEvents"] if entry["ph"] == "X"]
    assert [(entry["name"], entry["ts"], entry["dur"]) for entry in phases] == [
        ("forward", pytest.approx(1e6, abs=1), pytest.approx(1e5, abs=1)),
        ("exchange", pytest.approx(1.1e6, abs=1), pytest.approx(2e5, abs=1)),
    ]
    assert phases[0]["args"] == {"attempt": 0, "epoch": 0, "step": 1, "samples": 16}


def test_single_workers_do_not_align_clocks() -> None:
    alone = [step(host, rank, 1, NOW + ahead) for host, rank, ahead in (("a", 0, 0.0), ("b", 1, 3600.0))]
    alone = [replace(event, payload={**event.payload, "bytes": 0}) for event in alone]
    assert Clocks.of(alone).corrected("b", NOW + 3600.0) == NOW + 3600.0


def valid(timeline: dict[str, Any]) -> None:
    """What ui.perfetto.dev and chrome://tracing ask for, by the trace event format's description."""
    ends: dict[int, float] = {}
    for entry in timeline["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(entry)
        assert isinstance(entry["pid"], int)
        assert isinstance(entry["tid"], int)
        if entry["ph"] == "M":
            assert entry["args"]
            continue
        assert entry["ph"] in "XiC"
        assert entry["ts"] >= 0
        if entry["ph"] == "X":
            assert entry["dur"] >= 0
            if entry["tid"] == 0:  # phases of steps must not overlap
                assert entry["ts"] >= ends.get(entry["pid"], 0.0) - 50, entry
                ends[entry["pid"]] = entry["ts"] + entry["dur"]
        if entry["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in entry["args"].values())
