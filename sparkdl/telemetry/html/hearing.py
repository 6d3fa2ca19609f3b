"""Events as the page takes them: those that are what their kind says, by one clock, without pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkdl.telemetry.chrome_trace import Clocks
from sparkdl.telemetry.downsampling import sound
from sparkdl.telemetry.emit import Event

DRIVER = -1
"""The rank of the driver's own events."""

UNITS = ("member", "candidate", "round", "epoch")
"""What a row of the history is of; of an ensemble's member it has the last epoch's figures as well."""

# What is read of events. A user's own may be of the same kind and hold something else, as may one that was cut off.
_NEEDED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "progress": {"steps": int},
    "attempt": {"size": int},
}
_OF_DRIVER = frozenset(("begin", "end", "attempt", "restart", "resized", "members"))


def heard(events: Sequence[Event]) -> tuple[list[Event], float | None]:
    """The events in the order of time, and when the last one really was, in unix seconds.

    Times are by one clock. Where a run was begun again after it had ended, the time for which nothing ran is left out.

    Args:
        events: as ``read_events`` gives them.
    """
    clocks = Clocks.of(events)
    told = [replace(event, time=clocks.corrected(event.host, event.time)) for event in events if _sound(event)]
    told.sort(key=lambda event: event.time)
    return _without_pauses(told), told[-1].time if told else None


def merged(history: Sequence[Mapping[str, Any]], events: Sequence[Event]) -> list[dict[str, Any]]:
    """The history of a run that is not over: what its files tell, and what events tell beyond that.

    Args:
        history: of the files.
        events: in the order of time.
    """
    kinds = {event.kind for event in events}
    if kinds & {"member", "members"}:  # whose tasks tell of epochs of their own
        rows = [event.payload for event in events if event.kind == "member"]
    else:
        rows = [event.payload for event in events if event.kind in ("epoch", "round") and event.rank <= 0]
    found: dict[Any, dict[str, Any]] = {}
    for row in [*history, *rows]:
        unit = next((name for name in UNITS if name in row), None)
        # The last of what was done again; and without what the progress bar alone has to know.
        key = unit, row[unit] if unit else len(found)
        found[key] = {name: value for name, value in row.items() if name != "rounds"}
    return list(found.values())


def _sound(event: Event) -> bool:
    if event.kind in _OF_DRIVER and event.rank != DRIVER:
        return False
    needed = _NEEDED.get(event.kind, {}).items()
    return sound(event) and all(isinstance(event.payload.get(name), kind) for name, kind in needed)


def _without_pauses(events: Sequence[Event]) -> list[Event]:
    told: list[Event] = []
    pause, last = 0.0, None
    for event in events:
        if event.kind == "begin" and last is not None:
            pause += event.time - last
        last = event.time
        told.append(replace(event, time=event.time - pause) if pause else event)
    return told
