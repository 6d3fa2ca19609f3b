"""What a run has left behind, read from its directory for the report page."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl import files
from sparkdl.errors import InvalidInput
from sparkdl.events import Event, read_events
from sparkdl.timeline import Clocks

_DRIVER = -1
# A member's stages, as the phases that they are most like.
_STAGES = {
    "feed": "feed",
    "join": "exchange",
    "set up": "other",
}


@dataclass(frozen=True)
class Lap:
    """Some steps of a member.

    Attributes:
        rank: of the member, part or task.
        end: when they were over, in unix seconds of the clock that all have in common.
        seconds: by phase.
        steps: how many.
        rows: that the member used in them.
        sent: bytes that it gave to the others.
    """

    rank: int
    end: float
    seconds: dict[str, float]
    steps: int
    rows: int
    sent: int

    @property
    def start(self) -> float:
        """When the first one began."""
        return self.end - sum(self.seconds.values())


@dataclass(frozen=True)
class RunData:
    """A run, finished or not.

    Attributes:
        name: to tell it from others on the page.
        history: a row per epoch, round or member; of a run that goes on, those that it has told of.
        report: what it took; empty for a run that goes on.
        configuration: what it was asked to do.
        events: of members and of the driver, with times by one clock.
    """

    name: str
    history: Sequence[dict[str, Any]] = ()
    report: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()

    @classmethod
    def read(cls, directory: str) -> RunData:
        """Read a run's directory, a path or URI.

        Raises:
            InvalidInput: there is no run.
        """
        found = {name: _json(directory, name) for name in ("config", "history", "report")}
        events = read_events(files.join(directory, "events"))
        if not events and all(value is None for value in found.values()):
            raise InvalidInput(f"{directory} holds no run: expected config.json, history.json or events/ there.")
        clocks = Clocks.of(events)
        told = [replace(event, time=clocks.corrected(event.host, event.time)) for event in events]
        told.sort(key=lambda event: event.time)
        rows = [event.payload for event in told if event.kind in ("epoch", "round", "member")]
        name = directory.rstrip("/").rpartition("/")[2] or directory
        return cls(name, found["history"] or rows, found["report"] or {}, found["config"] or {}, told)

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in the order of time."""
        return [event for event in self.events if event.kind in kinds]

    def laps(self) -> Iterator[Lap]:
        """What is told of steps, in the order of time."""
        for event in self.of_kind("step"):
            told = event.payload
            yield Lap(event.rank, event.time, told["seconds"], told["steps"], told["rows"], told["bytes"])

    def stages(self) -> Iterator[Lap]:
        """What members did before their first step, as if it were steps."""
        for event in self.of_kind("span"):
            phase = _STAGES.get(event.payload["name"])
            if phase is not None and event.rank != _DRIVER:
                yield Lap(event.rank, event.time, {phase: event.payload["seconds"]}, 0, 0, 0)

    def phases(self) -> dict[int, dict[str, float]]:
        """Seconds by rank and phase: those of the report, or of a run that goes on those of its events."""
        reported = self.report.get("phases_by_rank")
        if reported:
            return dict(enumerate(reported))
        found: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for lap in self.laps():
            for phase, seconds in lap.seconds.items():
                found[lap.rank][phase] += seconds
        return {rank: dict(found[rank]) for rank in sorted(found)}

    def hosts(self) -> dict[int, str]:
        """The host on which each rank was last."""
        return {event.rank: event.host for event in self.events if event.rank != _DRIVER and event.host}

    @property
    def start(self) -> float:
        """When the first member began, in unix seconds; 0 where no event tells."""
        members = (event.time for event in self.events if event.rank != _DRIVER)
        return next(members, self.events[0].time if self.events else 0.0)

    @property
    def end(self) -> float:
        """When the last event was, in unix seconds; 0 where no event tells."""
        return self.events[-1].time if self.events else 0.0

    @property
    def over(self) -> bool:
        """Whether it has come to an end, in whatever way."""
        ends = self.of_kind("begin", "end")
        return bool(self.report) and not (ends and ends[-1].kind == "begin")

    @property
    def error(self) -> str | None:
        """Why its last attempt to come to an end failed; None where none has, or it was told of none."""
        ends = self.of_kind("begin", "end")
        return ends[-1].payload.get("error") if ends and ends[-1].kind == "end" else None


def _json(directory: str, name: str) -> Any:
    try:
        return json.loads(files.read(files.join(directory, f"{name}.json")))
    except FileNotFoundError:
        return None
