"""Downsampling of events: a run of hours has more events than a driver or browser can hold.

Consecutive step events of a worker are merged: counts add up, and the detail is the last event's. So sums stay exact.
Progress and span events are halved, per worker, until they fit. Other kinds stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from sparkdl.telemetry.event import Event

__all__ = ["merged", "sound", "thinned"]

_MANY = ("step", "progress", "span")
_COUNTS = ("steps", "rows", "bytes")
_NUMBER = (int, float)
_NEEDED: dict[str, dict[str, Any]] = {
    "step": dict.fromkeys(_COUNTS, int) | {"seconds": dict, "start": _NUMBER, "marks": list, "end": _NUMBER},
    "span": {"name": str, "start": _NUMBER, "seconds": _NUMBER},
}


def thinned(events: Iterable[Event], most: int) -> list[Event]:
    """Downsample the frequent kinds of events to about ``most`` in all; drop malformed events.

    Each worker's events must be in the order of time.
    """
    others: list[Event] = []
    series: dict[tuple[str, int, int], _Series] = defaultdict(_Series)
    every, count = 1, 0
    for event in filter(sound, events):
        if event.kind not in _MANY:
            others.append(event)
            continue
        count += series[event.kind, event.rank, event.attempt].add(event, every)
        if count > most:
            every *= 2
            for each in series.values():
                each.halve()
            count = sum(len(each.kept) for each in series.values())
    return others + [event for each in series.values() for event in each]


@dataclass
class _Series:
    """Events of one kind of one worker.

    Attributes:
        kept: downsampled events.
        waiting: the merger of the latest events, not yet in ``kept``.
        count: number of events in ``waiting``.
    """

    kept: list[Event] = field(default_factory=list)
    waiting: Event | None = None
    count: int = 0

    def add(self, event: Event, every: int) -> int:
        """Take an event, of which ``every`` become one; returns the growth of ``kept``."""
        self.waiting = event if self.waiting is None else merged(self.waiting, event)
        self.count += 1
        if self.count < every:
            return 0
        self.kept.append(self.waiting)
        self.waiting, self.count = None, 0
        return 1

    def halve(self) -> None:
        self.kept = [reduce(merged, self.kept[first : first + 2]) for first in range(0, len(self.kept), 2)]

    def __iter__(self) -> Iterator[Event]:
        yield from self.kept
        if self.waiting is not None:
            yield self.waiting


def merged(one: Event, other: Event) -> Event:
    """Merge two events of a kind, the earlier first: step events add up, of other kinds the first stays."""
    if one.kind != "step":
        return one
    before, after = one.payload, other.payload
    seconds = dict(before["seconds"])
    for name, value in after["seconds"].items():
        seconds[name] = seconds.get(name, 0.0) + value
    counts = {name: before[name] + after[name] for name in _COUNTS}
    return replace(other, payload=after | counts | {"seconds": seconds})


def sound(event: Event) -> bool:
    """Whether an event has its kind's fields: a user's event may have the same kind and other fields."""
    return all(isinstance(event.payload.get(name), kind) for name, kind in _NEEDED.get(event.kind, {}).items())
