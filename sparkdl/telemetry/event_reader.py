"""Reads the events of a run from its files, each event once.

A run of hours has more events than a driver or browser can hold. Consecutive step events of a worker are merged: counts
add up, and the detail is the last event's. So sums stay exact. Progress and span events are halved, per worker, until
they fit. Other kinds stay.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce

from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder, StrPath
from sparkdl.telemetry.event import Event, readable
from sparkdl.telemetry.event_file import DRIVER

_FREQUENT = ("step", "progress", "span")
_COUNTS = ("steps", "rows", "bytes")


def read_events(folder: StrPath, *, most: int | None = None, odd: list[str] | None = None) -> list[Event]:
    """Read the events of a run once each, sorted by time.

    Lines that are no readable event, such as the last line of a killed process, are left out.

    Args:
        folder: a run's ``events``, a path or URI; a missing or empty folder has no events.
        most: approximate limit of step, progress and span events, of which more are merged; default: all, unchanged.
        odd: gets a text for each line that is left out; default: one ``RuntimeWarning`` with their number.
    """
    left_out: list[str] = [] if odd is None else odd
    events = _stream(Folder.of(str(folder)), left_out)
    read = sorted(events if most is None else thinned(events, most), key=lambda event: event.time)
    if left_out and odd is None:
        what = "lines of event files hold no readable event and are left out"
        warnings.warn(f"{what}: {len(left_out)}, such as {left_out[0]}", RuntimeWarning, stacklevel=2)
    return read


def _stream(folder: Folder, odd: list[str]) -> Iterator[Event]:
    names = sorted(name for name in folder.sizes("") if name.endswith(".jsonl"))
    driver = [name for name in names if name.startswith(DRIVER)]
    workers = [name for name in names if name not in driver]
    # If a connection breaks, a worker writes its last events to its file, and the driver may have them as well.
    missing = {_key(event) for name in workers for event in _events(folder, name, [])} if driver else set()
    for event in (event for name in driver for event in _events(folder, name, odd)):
        missing.discard(_key(event))
        yield event
    for event in (event for name in workers for event in _events(folder, name, odd)):
        if not driver or not event.number or _key(event) in missing:
            missing.discard(_key(event))
            yield event


def _key(event: Event) -> tuple[str, int]:
    return event.recorder, event.number


def _events(folder: Folder, name: str, odd: list[str]) -> Iterator[Event]:
    with folder.open(name) as stream:
        for number, line in enumerate(io.BufferedReader(stream), start=1):
            try:
                event = Event.from_json(line)
                if not readable(event):
                    raise InvalidInput(f"{event.kind!r:.80} has other fields than its readers expect")
            except InvalidInput as error:
                odd.append(f"line {number} of {folder.at(name)}: {error}")
            else:
                yield event


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
        one = series[event.kind, event.rank, event.attempt]
        one.waiting = [reduce(merged, (*one.waiting, event))]
        one.count += 1
        if one.count >= every:
            one.done += one.waiting
            one.waiting, one.count = [], 0
            count += 1
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
    count: int = 0  # events that were merged into the waiting one


def merged(earlier: Event, later: Event) -> Event:
    """Merge two events of a kind: step events add up, of other kinds the earlier stays."""
    if earlier.kind != "step":
        return earlier
    before, after = earlier.payload, later.payload
    sums = {name: before[name] + after[name] for name in _COUNTS}
    seconds = Counter(before["seconds"])
    seconds.update(after["seconds"])
    return replace(later, payload=after | sums | {"seconds": dict(seconds)})
