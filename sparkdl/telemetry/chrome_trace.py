"""A run's timeline in the Chrome trace format, for ui.perfetto.dev and chrome://tracing.

Each worker is a process of the trace, with a row of steps, divided into phases, a row of stages, and a row per further
thread. The driver is a process too: attempts, restarts, epochs and rounds. Times are microseconds from the first event.

Hosts' clocks disagree. An event of host ``h`` has time ``t`` by the host's clock and arrived at ``r`` by the driver's
clock. With ``o`` the offset of the host's clock and ``d > 0`` the event's delay,

    r = t - o + d    so    o >= t - r,    and    o ~ max (t - r)    over all events of a host in ten minutes

The error is the shortest delay in that time, well below a millisecond in one network. The driver's host has offset 0.
If the driver received no event of a host, exchanges align its clock, since an exchange ends everywhere at the same
moment: the offset to the lowest rank's host is the median difference of their exchanges' ends.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.io import files
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events

WINDOW = 600.0
"""Seconds for which a host's offset counts as constant."""
DRIVER = -1
"""Rank of the driver's own events."""
MOST = 40_000
"""Most events of the frequent kinds in a trace; ``read_events`` merges more."""

_Offsets = dict[str, dict[int, float]]
_STEPS, _STAGES = 0, 1
_MOMENTS = ("started", "failed", "finished", "restart", "resized", "epoch", "round", "checkpoint", "warning")


@dataclass(frozen=True)
class Clocks:
    """Hosts' clock offsets from the driver's clock, or from the lowest rank's.

    Attributes:
        offsets: seconds by host and by the number of the ``WINDOW`` since 1970.
    """

    offsets: _Offsets

    @classmethod
    def of(cls, events: Sequence[Event]) -> Clocks:
        """Estimate the offsets from events."""
        local = {event.host for event in events if event.rank == DRIVER}
        offsets: _Offsets = defaultdict(dict)
        for event in events:
            if event.received is not None and event.rank != DRIVER:
                window = int(event.time // WINDOW)
                ahead = 0.0 if event.host in local else event.time - event.received
                offsets[event.host][window] = max(offsets[event.host].get(window, ahead), ahead)
        silent = {event.host for event in events if event.rank != DRIVER} - set(offsets)
        return cls(offsets | (_by_steps(events, silent, offsets) if silent else {}))

    def corrected(self, host: str, time: float) -> float:
        """Convert a host's time to the common clock."""
        if not (windows := self.offsets.get(host)):
            return time
        return time - windows[min(windows, key=lambda window: abs(window - int(time // WINDOW)))]


def _by_steps(events: Iterable[Event], silent: set[str], known: _Offsets) -> _Offsets:
    ends: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    lowest: dict[str, int] = {}
    for event in events:
        lowest[event.host] = min(lowest.get(event.host, event.rank), event.rank)
        # Workers of a gang only: a single worker exchanges nothing.
        if event.kind == "step" and event.clock is not None and event.payload.get("bytes"):
            for phase, _, end in _phases(event.payload):
                if phase == "exchange":  # the last one of the step stays
                    ends[event.host][event.attempt, event.clock["step"]] = event.payload["start"] + end
    reference = min([host for host in ends if host in known] or ends, key=lambda host: lowest[host], default=None)
    if reference is None:
        return {}
    base = next(iter(known.get(reference, {}).values()), 0.0)
    offsets = {}
    for host in silent & set(ends):
        if common := ends[host].keys() & ends[reference].keys():
            offsets[host] = {0: base + statistics.median(ends[host][step] - ends[reference][step] for step in common)}
    return offsets


def _phases(payload: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    for (phase, begin), (_, end) in itertools.pairwise([*payload["marks"], ["", payload["end"]]]):
        yield phase, begin, end


def trace(events: Sequence[Event]) -> dict[str, Any]:
    """Convert a run's events, as ``read_events`` returns them, to a trace, to be written as JSON."""
    clocks = Clocks.of(events)
    threads: dict[tuple[int, str], int] = {}
    entries = [entry for event in events for entry in _entries(event, clocks, threads)]
    first = min((entry["ts"] for entry in entries), default=0.0)
    for entry in entries:
        entry["ts"] = round((entry["ts"] - first) * 1e6, 1)
        if "dur" in entry:
            entry["dur"] = round(entry["dur"] * 1e6, 1)
    entries.sort(key=lambda entry: float(entry["ts"]))
    return {"traceEvents": [*_names(events, threads), *entries], "displayTimeUnit": "ms"}


def write_timeline(directory: str) -> None:
    """Write ``timeline.json`` from the events of a run's directory, a path or URI."""
    timeline = trace(read_events(files.join(directory, "events"), most=MOST))
    files.write(files.join(directory, "timeline.json"), json.dumps(timeline, separators=(",", ":")).encode())


def _entries(event: Event, clocks: Clocks, threads: dict[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
    at = clocks.corrected(event.host, event.time)
    if event.kind == "step":
        start = clocks.corrected(event.host, event.payload["start"])
        for phase, begin, end in _phases(event.payload):
            if phase != "other" and end > begin:
                yield _entry(event, phase, _STEPS, start + begin, {}) | {"ph": "X", "dur": end - begin}
    elif event.kind == "span":
        args = dict(event.payload)
        name, start, seconds = args.pop("name"), args.pop("start"), args.pop("seconds")
        thread = args.pop("thread", None)
        row = _STAGES if thread is None else threads.setdefault((event.rank, thread), _STAGES + 1 + len(threads))
        yield _entry(event, name, row, clocks.corrected(event.host, start), args) | {"ph": "X", "dur": seconds}
    elif event.kind == "progress":
        for name, key in (("loss", "loss"), ("rows/s", "rows_per_second")):
            value = event.payload.get(key)
            if isinstance(value, (int, float)) and math.isfinite(value):
                yield _entry(event, name, _STEPS, at, {}) | {"ph": "C", "args": {name: value}}
    elif event.kind in _MOMENTS:
        # JSON lacks non-finite numbers, and a browser would reject the whole file.
        args = {
            key: value if isinstance(value, str) or math.isfinite(value) else str(value)
            for key, value in event.payload.items()
            if isinstance(value, (str, int, float))
        }
        yield _entry(event, event.kind, _STAGES, at, args) | {"ph": "i", "s": "p"}


def _entry(event: Event, name: str, thread: int, at: float, args: Mapping[str, Any]) -> dict[str, Any]:
    args = {"attempt": event.attempt, **(event.clock or {}), **args}
    return {"name": name, "cat": "sparkdl", "pid": event.rank + 1, "tid": thread, "ts": at, "args": args}


def _names(events: Iterable[Event], threads: dict[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
    hosts: dict[int, str] = {}
    for event in events:
        hosts[event.rank] = event.host or hosts.get(event.rank, "")
    rows = {(rank, number): name for rank in hosts for number, name in ((_STEPS, "steps"), (_STAGES, "stages"))}
    rows |= {(rank, number): name for (rank, name), number in threads.items()}
    for rank, host in sorted(hosts.items()):
        name = ("driver" if rank == DRIVER else f"rank {rank}") + (f" ({host})" if host else "")
        yield {"name": "process_name", "ph": "M", "pid": rank + 1, "tid": 0, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank + 1, "tid": 0, "args": {"sort_index": rank + 1}}
    for (rank, number), name in sorted(rows.items()):
        yield {"name": "thread_name", "ph": "M", "pid": rank + 1, "tid": number, "args": {"name": name}}
