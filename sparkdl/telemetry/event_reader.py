"""Reads the events of a run from its files, each event once."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator

from sparkdl.errors import InvalidInput
from sparkdl.io.files import Folder
from sparkdl.telemetry.downsampling import thinned
from sparkdl.telemetry.event import Event, readable
from sparkdl.telemetry.event_file import DRIVER


def read_events(
    folder: str | os.PathLike[str], *, most: int | None = None, odd: list[str] | None = None
) -> list[Event]:
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
        warnings.warn(f"{len(left_out)} events are left out, such as {left_out[0]}", RuntimeWarning, stacklevel=2)
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
