"""Reads the events of a run from its files, each event once."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.downsampling import thinned
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import DRIVER, open_folder

if TYPE_CHECKING:
    from sparkdl.io.files import Folder


def read_events(folder: str | os.PathLike[str], *, most: int | None = None) -> list[Event]:
    """Read the events of a run once each, sorted by time.

    An invalid line, such as the last line of a killed process, is skipped with a ``RuntimeWarning``.

    Args:
        folder: a run's ``events``, a path or URI; a missing or empty folder has no events.
        most: approximate limit of events of the frequent kinds (see ``sparkdl.telemetry.downsampling``); default: all
            events, unchanged.
    """
    events = _stream(open_folder(str(folder)))
    found = list(events) if most is None else thinned(events, most)
    return sorted(found, key=lambda event: event.time)


def _stream(place: Folder) -> Iterator[Event]:
    """All events, those of a member in the order of time."""
    names = sorted(name for name in place.sizes("") if name.endswith(".jsonl"))
    heard = [name for name in names if name.startswith(DRIVER)]
    kept = [name for name in names if name not in heard]
    # If a connection breaks, a worker keeps its last events in the file, and the driver may have them as well.
    twice = {_key(event) for name in kept for event in _events(place, name)} if heard else set[tuple[str, int]]()
    for event in (event for name in heard for event in _events(place, name)):
        twice.discard(_key(event))
        yield event
    for event in (event for name in kept for event in _events(place, name, told=bool(heard))):
        if not heard or not event.number or _key(event) in twice:
            twice.discard(_key(event))
            yield event


def _key(event: Event) -> tuple[str, int]:
    return event.recorder, event.number


def _events(place: Folder, name: str, *, told: bool = False) -> Iterator[Event]:
    """The events of a file; of lines that are none it warns, unless that was told before."""
    with place.open(name) as stream:
        for number, line in enumerate(io.BufferedReader(stream), start=1):
            try:
                yield Event.from_json(line)
            except InvalidInput as error:
                if not told:
                    warnings.warn(f"{place.at(name)} line {number} is skipped: {error}", RuntimeWarning, stacklevel=4)
