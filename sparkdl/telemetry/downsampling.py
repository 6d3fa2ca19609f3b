"""Fewer events that tell the same: a run of hours has more of them than a driver, or a browser, has room for.

Events of steps that follow one another on a member become one: what they count is added up, and the detail is that of
the last one. So sums stay exact. Of the progress and the spans of a member every second one goes, as often as there are
too many. All other kinds stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from sparkdl.telemetry.event import Event

__all__ = ["merged", "sound", "thinned"]

_MANY = ("step", "progress", "span")
_COUNTS = ("steps", "rows", "bytes")
_NEEDED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "step": {
        "steps": int,
        "rows": int,
        "bytes": int,
        "seconds": dict,
        "start": (int, float),
        "marks": list,
        "end": (int, float),
    },
    "span": {"name": str, "start": (int, float), "seconds": (int, float)},
}


def thinned(events: Iterable[Event], most: int) -> list[Event]:
    """At most about ``most`` events of the kinds that there are many of, and all others that are sound.

    Args:
        events: those of a member in the order of time.
        most: how many.
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
    """The events of one kind, of one member.

    Attributes:
        kept: those that stay.
        waiting: those that become one of them; of what does not add up, the first of them.
        count: of the events that wait.
    """

    kept: list[Event] = field(default_factory=list)
    waiting: Event | None = None
    count: int = 0

    def add(self, event: Event, every: int) -> int:
        """Take another one, of which every so many become one; how many more there are."""
        self.waiting = event if self.waiting is None else merged(self.waiting, event)
        self.count += 1
        if self.count < every:
            return 0
        self.kept.append(self.waiting)
        self.waiting, self.count = None, 0
        return 1

    def halve(self) -> None:
        """Two become one."""
        pairs = [self.kept[first : first + 2] for first in range(0, len(self.kept), 2)]
        self.kept = [merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs]

    def __iter__(self) -> Iterator[Event]:
        yield from self.kept
        if self.waiting is not None:
            yield self.waiting


def merged(one: Event, other: Event) -> Event:
    """Two events of a kind, the first one earlier, as one: steps add up, of others the first one stays."""
    if one.kind != "step":
        return one
    before, after = one.payload, other.payload
    names = {**before["seconds"], **after["seconds"]}
    seconds = {name: before["seconds"].get(name, 0.0) + after["seconds"].get(name, 0.0) for name in names}
    return replace(
        other, payload={**after, "seconds": seconds, **{name: before[name] + after[name] for name in _COUNTS}}
    )


def sound(event: Event) -> bool:
    """Whether an event has what its kind is read for: a user's own may have the same name, and hold something else."""
    return all(isinstance(event.payload.get(name), kind) for name, kind in _NEEDED.get(event.kind, {}).items())
