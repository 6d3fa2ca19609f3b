"""Reads the events of a run from its files, each event once."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator

from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder
from sparkdl.telemetry.downsampling import thinned
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import DRIVER


def read_events(folder: str | os.PathLike[str], *, most: int | None = None) -> list[Event]:
    """Read the events of a run once each, sorted by time.

    An invalid line, such as the last line of a killed process, is skipped with a ``RuntimeWarning``.

    Args:
        folder: a run's ``events``, a path or URI; a missing or empty folder has no events.
        most: approximate limit of step, progress and span events, of which more are merged; default: all, unchanged.
    """
    events = _stream(Folder.of(str(folder)))
    return sorted(events if most is None else thinned(events, most), key=lambda event: event.time)


def _stream(folder: Folder) -> Iterator[Event]:
    """All events, those of a worker in the order of time."""
    names = sorted(name for name in folder.sizes("") if name.endswith(".jsonl"))
    driver = [name for name in names if name.startswith(DRIVER)]
    workers = [name for name in names if name not in driver]
    # If a connection breaks, a worker writes its last events to its file, and the driver may have them as well.
    missing = {_key(event) for name in workers for event in _events(folder, name)} if driver else set[tuple[str, int]]()
    for event in (event for name in driver for event in _events(folder, name)):
        missing.discard(_key(event))
        yield event
    for event in (event for name in workers for event in _events(folder, name, warn=not driver)):
        if not driver or not event.number or _key(event) in missing:
            missing.discard(_key(event))
            yield event


def _key(event: Event) -> tuple[str, int]:
    return event.recorder, event.number


def _events(folder: Folder, name: str, *, warn: bool = True) -> Iterator[Event]:
    with folder.open(name) as stream:
        for number, line in enumerate(io.BufferedReader(stream), start=1):
            try:
                yield Event.from_json(line)
            except InvalidInput as error:
                if warn:
                    warnings.warn(f"{folder.at(name)} line {number} is skipped: {error}", RuntimeWarning, stacklevel=4)
