"""A run's timeline in the Chrome trace format, for ui.perfetto.dev and chrome://tracing.

Each worker is a process of the trace. It has a row of steps, divided into phases, a row of stages, and a row per
further thread. The driver is the process "driver": attempts, restarts, epochs and rounds. Times are microseconds from
the first event.

Hosts' clocks disagree, by milliseconds if synchronised, else by any amount. An event of host ``h`` has time ``t`` by
the host's clock and arrived at ``r`` by the driver's clock. With ``o`` the offset of the host's clock and ``d > 0`` the
event's delay,

    r = t - o + d    so    o >= t - r,    and    o ~ max (t - r)    over all events of a host in ten minutes

The error is the shortest delay in that time: well below a millisecond in one network. The driver's own host has offset
0. If the driver received no event of a host, exchanges align its clock: an exchange ends everywhere at the same moment.
The offset to the lowest rank's host is then the median difference of their exchanges' ends, over the steps that both
recorded.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.io import files
from sparkdl.telemetry.downsampling import sound
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events

__all__ = ["Clocks", "trace", "write_timeline"]

WINDOW = 600.0
"""Seconds for which a host's offset counts as constant."""
MOST = 40_000
"""Most events of the frequent kinds in a trace; ``sparkdl.telemetry.downsampling`` merges more."""

_DRIVER = -1
_STEPS, _STAGES = 0, 1
_MOMENTS = ("started", "failed", "finished", "restart", "resized", "epoch", "round", "checkpoint", "warning")


@dataclass(frozen=True)
class Clocks:
    """Hosts' clock offsets from the driver's clock, or from the lowest rank's.

    Attributes:
        offsets: seconds by host and by the number of the ``WINDOW`` since 1970.
    """

    offsets: dict[str, dict[int, float]]

    @classmethod
    def of(cls, events: Sequence[Event]) -> Clocks:
        """Estimate the offsets from events."""
        own = {event.host for event in events if event.rank == _DRIVER}
        best: dict[str, dict[int, float]] = defaultdict(dict)
        for event in events:
            if event.received is None or event.rank == _DRIVER:
                continue
            window, ahead = int(event.time // WINDOW), event.time - event.received
            best[event.host][window] = max(best[event.host].get(window, ahead), ahead)
        found = {host: dict.fromkeys(each, 0.0) if host in own else each for host, each in best.items()}
        silent = {event.host for event in events if event.rank != _DRIVER} - set(found)
        return cls(found | (_by_steps(events, silent, found) if silent else {}))

    def corrected(self, host: str, time: float) -> float:
        """Convert a host's time to the common clock."""
        windows = self.offsets.get(host)
        if not windows:
            return time
        wanted = int(time // WINDOW)
        return time - windows[min(windows, key=lambda window: abs(window - wanted))]


def _by_steps(
    events: Iterable[Event], silent: set[str], known: dict[str, dict[int, float]]
) -> dict[str, dict[int, float]]:
    ends: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    lowest: dict[str, int] = {}
    for event in events:
        lowest[event.host] = min(lowest.get(event.host, event.rank), event.rank)
        # Workers of a gang only: a single worker exchanges nothing.
        if event.kind == "step" and event.clock is not None and event.payload.get("bytes"):
            end = _end_of_exchange(event.payload)
            if end is not None:
                ends[event.host][event.attempt, event.clock["step"]] = end
    heard = [host for host in ends if host in known]
    reference = min(heard or ends, key=lambda host: lowest[host], default=None)
    if reference is None:
        return {}
    base = next(iter(known.get(reference, {}).values()), 0.0)
    found = {}
    for host in silent & set(ends):
        apart = [ends[host][step] - ends[reference][step] for step in ends[host].keys() & ends[reference].keys()]
        if apart:
            found[host] = {0: base + statistics.median(apart)}
    return found


def _end_of_exchange(payload: dict[str, Any]) -> float | None:
    marks = [*payload["marks"], ["", payload["end"]]]
    ends = [after for (phase, _), (_, after) in itertools.pairwise(marks) if phase == "exchange"]
    return payload["start"] + ends[-1] if ends else None


def trace(events: Sequence[Event]) -> dict[str, Any]:
    """Convert a run's events, as ``read_events`` returns them, to a trace, to be written as JSON."""
    clocks = Clocks.of(events)
    made: list[dict[str, Any]] = []
    threads: dict[tuple[int, str], int] = {}
    for event in filter(sound, events):
        if event.kind == "step":
            made += _step(event, clocks)
        elif event.kind == "span":
            made.append(_span(event, clocks, threads))
        elif event.kind == "progress":
            made += _counters(event, clocks)
        elif event.kind in _MOMENTS:
            made.append(_moment(event, clocks))
    first = min((each["ts"] for each in made), default=0.0)
    for each in made:
        each["ts"] = round((each["ts"] - first) * 1e6, 1)
        if "dur" in each:
            each["dur"] = round(each["dur"] * 1e6, 1)
    made.sort(key=lambda each: float(each["ts"]))
    return {"traceEvents": [*_names(events, threads), *made], "displayTimeUnit": "ms"}


def write_timeline(directory: str) -> None:
    """Write ``timeline.json`` from the events of a run's directory, a path or URI."""
    made = trace(read_events(files.join(directory, "events"), most=MOST))
    files.write(files.join(directory, "timeline.json"), json.dumps(made, separators=(",", ":")).encode())


def _step(event: Event, clocks: Clocks) -> Iterator[dict[str, Any]]:
    told, start = event.payload, clocks.corrected(event.host, event.payload["start"])
    marks = [*told["marks"], ["", told["end"]]]
    args = {"attempt": event.attempt, **(event.clock or {})}
    for (phase, begin), (_, end) in itertools.pairwise(marks):
        if phase != "other" and end > begin:
            yield _piece(event, phase, _STEPS, start + begin) | {"ph": "X", "dur": end - begin, "args": args}


def _span(event: Event, clocks: Clocks, threads: dict[tuple[int, str], int]) -> dict[str, Any]:
    told = dict(event.payload)
    name, start, seconds = told.pop("name"), told.pop("start"), told.pop("seconds")
    thread = told.pop("thread", None)
    row = _STAGES if thread is None else threads.setdefault((event.rank, thread), _STAGES + 1 + len(threads))
    args = {"attempt": event.attempt, **(event.clock or {}), **told}
    return _piece(event, name, row, clocks.corrected(event.host, start)) | {"ph": "X", "dur": seconds, "args": args}


def _counters(event: Event, clocks: Clocks) -> Iterator[dict[str, Any]]:
    for name, key in (("loss", "loss"), ("rows/s", "rows_per_second")):
        value = event.payload.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            at = clocks.corrected(event.host, event.time)
            yield _piece(event, name, _STEPS, at) | {"ph": "C", "args": {name: value}}


def _moment(event: Event, clocks: Clocks) -> dict[str, Any]:
    plain = {key: value for key, value in event.payload.items() if isinstance(value, (str, int, float))}
    # JSON lacks non-finite numbers, and a browser would reject the whole file.
    written = {
        key: value if isinstance(value, str) or math.isfinite(value) else str(value) for key, value in plain.items()
    }
    args = {"attempt": event.attempt, **(event.clock or {}), **written}
    at = clocks.corrected(event.host, event.time)
    return _piece(event, event.kind, _STAGES, at) | {"ph": "i", "s": "p", "args": args}


def _piece(event: Event, name: str, thread: int, at: float) -> dict[str, Any]:
    return {"name": name, "cat": "sparkdl", "pid": event.rank + 1, "tid": thread, "ts": at}


def _names(events: Iterable[Event], threads: dict[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
    hosts: dict[int, str] = {}
    for event in events:
        hosts[event.rank] = event.host or hosts.get(event.rank, "")
    rows = {(rank, number): name for rank in hosts for number, name in ((_STEPS, "steps"), (_STAGES, "stages"))}
    rows |= {(rank, number): name for (rank, name), number in threads.items()}
    for rank, host in sorted(hosts.items()):
        name = ("driver" if rank == _DRIVER else f"rank {rank}") + (f" ({host})" if host else "")
        yield {"name": "process_name", "ph": "M", "pid": rank + 1, "tid": 0, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank + 1, "tid": 0, "args": {"sort_index": rank + 1}}
    for (rank, number), name in sorted(rows.items()):
        yield {"name": "thread_name", "ph": "M", "pid": rank + 1, "tid": number, "args": {"name": name}}
