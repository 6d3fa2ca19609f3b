"""Downsampling of events: a run of hours has more events than a driver or browser can hold.

Consecutive step events of a worker are merged: counts add up, and the detail is the last event's. So sums stay exact.
Progress and span events are halved, per worker, until they fit. Other kinds stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from sparkdl.telemetry.event import Event

_FREQUENT = ("step", "progress", "span")
_COUNTS = ("steps", "rows", "bytes")


def thinned(events: Iterable[Event], most: int) -> list[Event]:
    """Downsample the frequent kinds of events to about ``most`` in all.

    Each worker's events must be in the order of time.
    """
    others: list[Event] = []
    series: dict[tuple[str, int, int], _Series] = defaultdict(_Series)
    every, count = 1, 0
    for event in events:
        if event.kind not in _FREQUENT:
            others.append(event)
            continue
        count += series[event.kind, event.rank, event.attempt].add(event, every)
        if count > most:
            every *= 2
            for worker in series.values():
                worker.done = [reduce(merged, worker.done[at : at + 2]) for at in range(0, len(worker.done), 2)]
            count = sum(len(worker.done) for worker in series.values())
    return others + [event for worker in series.values() for event in (*worker.done, *worker.waiting)]


@dataclass
class _Series:
    done: list[Event] = field(default_factory=list)
    waiting: list[Event] = field(default_factory=list)
    count: int = 0

    def add(self, event: Event, every: int) -> int:
        """Take an event, of which ``every`` become one; returns the growth of ``done``."""
        self.waiting = [reduce(merged, (*self.waiting, event))]
        self.count += 1
        if self.count < every:
            return 0
        self.done += self.waiting
        self.waiting, self.count = [], 0
        return 1


def merged(earlier: Event, later: Event) -> Event:
    """Merge two events of a kind: step events add up, of other kinds the earlier stays."""
    if earlier.kind != "step":
        return earlier
    before, after = earlier.payload, later.payload
    sums = {name: before[name] + after[name] for name in _COUNTS}
    seconds = Counter(before["seconds"])
    seconds.update(after["seconds"])
    return replace(later, payload=after | sums | {"seconds": dict(seconds)})
