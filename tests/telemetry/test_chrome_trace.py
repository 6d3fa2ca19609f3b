"""Events as a trace, on one clock."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.telemetry.chrome_trace import Clocks, trace, write_timeline
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.training.loop import Training
from tests.training.test_loop import COLUMNS, OBJECTIVE, numbers

NOW = 1_700_000_400.0


def at(host: str, time: float, *, rank: int = 0, received: float | None = None, kind: str = "heartbeat") -> Event:
    return Event(kind, rank, 0, time, None, {}, host, received)


def step(host: str, rank: int, number: int, start: float, *, wait: float = 0.2, received: float | None = None) -> Event:
    told = {
        "steps": 1,
        "rows": 8,
        "bytes": 100,
        "seconds": {"forward": 0.1, "exchange": wait},
        "start": start,
        "marks": [["other", 0.0], ["forward", 0.0], ["exchange", 0.1], ["update", 0.1 + wait]],
        "end": 0.1 + wait,
    }
    clock = {"epoch": 0, "step": number, "samples": 16 * number}
    return Event("step", rank, 0, start + told["end"], clock, told, host, received)


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
    for start in (NOW + number for number in range(1, 10)):
        number = int(start - NOW)
        events.append(step("a", 0, number, start + 3.0, wait=0.3, received=start + 0.4))
        events.append(step("b", 1, number, start - 2.0 + 0.1, wait=0.2))  # later, so that it waits less
    clocks = Clocks.of(events)
    assert clocks.corrected("a", NOW + 3.0) == pytest.approx(NOW, abs=0.001)
    assert clocks.corrected("b", NOW - 2.0) == pytest.approx(NOW, abs=0.001)
    alone = Clocks.of(
        [replace(event, received=None) for event in events[1:]]
    )  # the lowest rank's host is the reference
    assert alone.corrected("a", NOW + 3.0) == NOW + 3.0
    assert alone.corrected("b", NOW - 2.0) == pytest.approx(NOW + 3.0, abs=1e-6)


# ---- the trace --------------------------------------------------------------------------------------------------


def test_threads_have_separate_rows() -> None:
    def span(name: str, **more: Any) -> Event:
        told = {"name": name, "start": NOW, "seconds": 2.0, **more}
        return Event("span", 1, 0, NOW + 2, None, told, "a")

    made = trace([span("work"), span("save checkpoint", thread="saver"), span("read", thread="feeder")])["traceEvents"]
    rows = {each["args"]["name"]: each["tid"] for each in made if each["name"] == "thread_name" and each["pid"] == 2}
    assert set(rows) == {"steps", "stages", "saver", "feeder"}
    assert len(set(rows.values())) == 4
    found = {each["name"]: each["tid"] for each in made if each["ph"] == "X"}
    assert found == {"work": rows["stages"], "save checkpoint": rows["saver"], "read": rows["feeder"]}


def test_malformed_events_are_skipped_and_trace_is_valid_json() -> None:
    odd = [
        Event("step", 0, 0, NOW, None, {"value": 1.0}, "a"),
        Event("span", 0, 0, NOW, None, {"truncated": 1 << 21}, "a"),
        Event("epoch", 0, 0, NOW, None, {"loss": float("nan")}, "a"),
        Event("progress", 0, 0, NOW, None, {"loss": float("inf")}, "a"),
    ]
    made = trace([*odd, step("a", 0, 1, NOW + 1)])
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert [each["args"]["loss"] for each in made["traceEvents"] if each["name"] == "epoch"] == ["nan"]
    pieces = [each for each in made["traceEvents"] if each["ph"] == "X"]
    assert [(each["name"], each["ts"], each["dur"]) for each in pieces] == [
        ("forward", pytest.approx(1e6, abs=1), pytest.approx(1e5, abs=1)),
        ("exchange", pytest.approx(1.1e6, abs=1), pytest.approx(2e5, abs=1)),
    ]
    assert pieces[0]["args"] == {"attempt": 0, "epoch": 0, "step": 1, "samples": 16}


def test_single_workers_do_not_align_clocks() -> None:
    lone = [step(host, rank, 1, NOW + apart) for host, rank, apart in (("a", 0, 0.0), ("b", 1, 3600.0))]
    lone = [replace(each, payload={**each.payload, "bytes": 0}) for each in lone]
    assert Clocks.of(lone).corrected("b", NOW + 3600.0) == NOW + 3600.0


def valid(made: dict[str, Any]) -> None:
    """What ui.perfetto.dev and chrome://tracing ask for, by the trace event format's description."""
    ends: dict[tuple[int, int], float] = {}
    for each in made["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(each)
        assert isinstance(each["pid"], int)
        assert isinstance(each["tid"], int)
        if each["ph"] == "M":
            assert each["args"]
            continue
        assert each["ph"] in "XiC"
        assert each["ts"] >= 0
        if each["ph"] == "X":
            assert each["dur"] >= 0
            if each["tid"] == 0:  # pieces of steps must not overlap
                place = each["pid"], each["tid"]
                assert each["ts"] >= ends.get(place, 0.0) - 50, each
                ends[place] = each["ts"] + each["dur"]
        if each["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in each["args"].values())


def test_trace_of_run_is_valid_and_has_every_worker(tmp_path: Path) -> None:
    with LocalCluster(2) as cluster, EventLog(str(tmp_path / "events")) as logbook:
        cluster.gang(Training(OBJECTIVE, 12, epochs=2), numbers(), COLUMNS, listener=logbook)
    write_timeline(str(tmp_path))
    made = json.loads((tmp_path / "timeline.json").read_text())
    valid(made)
    names = {each["pid"]: each["args"]["name"] for each in made["traceEvents"] if each["name"] == "process_name"}
    assert {name.partition(" (")[0] for name in names.values()} == {"rank 0", "rank 1"}
    for pid in names:
        told = {each["name"] for each in made["traceEvents"] if each["pid"] == pid and each["ph"] == "X"}
        assert {"feed", "forward", "backward", "exchange", "update", "join", "work"} <= told
