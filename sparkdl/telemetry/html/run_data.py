"""What a run has left behind, read from its directory for the report page."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import masked
from sparkdl.telemetry.chrome_trace import MOST, Clocks
from sparkdl.telemetry.downsampling import sound
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events

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

# A member's stages, as the phases that they are most like.
_STAGES = {
    "feed": "feed",
    "join": "exchange",
    "set up": "other",
}
_REST = "other"
_MOST_HOST = 24  # characters of a host's name beside a chart
_NOUNS = {"member": "member", "candidate": "member", "round": "part"}


@dataclass(frozen=True)
class Lap:
    """Some steps of a member.

    Attributes:
        rank: of the member, part or task.
        end: when they were over, in seconds as those of the run's events.
        seconds: by phase.
        rows: that the member used in them.
    """

    rank: int
    end: float
    seconds: dict[str, float]
    rows: int = 0

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
        report: what it took; empty for a run that goes on, or failed.
        configuration: what it was asked to do.
        events: of members and of the driver, in the order of time. Times are by one clock, in unix seconds; where the
            run was begun again, without the time for which nothing ran.
        last: when the last event really was, in unix seconds; None where there is none.
    """

    name: str
    history: Sequence[dict[str, Any]] = ()
    report: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()
    last: float | None = None

    @classmethod
    def read(cls, directory: str, name: str | None = None) -> RunData:
        """Read a run's directory, a path or URI.

        Args:
            directory: of the run.
            name: to tell it from others; that of the directory by default.

        Raises:
            InvalidInput: there is no run, or what there is cannot be read.
        """
        history, report = _json(directory, "history", list), _json(directory, "report", dict)
        configuration = _json(directory, "config", dict)
        events = read_events(files.join(directory, "events"), most=MOST)
        if not events and history is None and report is None and configuration is None:
            raise InvalidInput(
                f"{masked(directory)} holds no run; expected the runDir of a fit, with config.json, history.json or "
                "events/."
            )
        told, last = heard(events)
        data = cls(name or _path(directory)[-1], history or (), report or {}, configuration or {}, told, last)
        # Of a run that was begun again, what files tell is of the time before.
        return data if data.state == "finished" else replace(data, report={}, history=merged(data.history, told))

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in the order of time."""
        return [event for event in self.events if event.kind in kinds]

    def laps(self) -> Iterator[Lap]:
        """What is told of steps, in the order of time."""
        for event in self.of_kind("step"):
            yield Lap(event.rank, event.time, event.payload["seconds"], event.payload["rows"])

    def stages(self) -> Iterator[Lap]:
        """What members did before their first step, as if it were steps; what lies between two stages as well."""
        ends: dict[tuple[int, int], float] = {}
        for event in self.of_kind("started", "span"):
            key = event.rank, event.attempt
            if event.kind == "started":
                ends[key] = event.time
                continue
            phase = _STAGES.get(event.payload["name"])
            if phase is None or event.rank == DRIVER:
                continue
            lap = Lap(event.rank, event.time, {phase: event.payload["seconds"]})
            before = ends.get(key, lap.start)
            if lap.start > before:
                yield Lap(event.rank, lap.start, {_REST: lap.start - before})
            ends[key] = event.time
            yield lap

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

    @cached_property
    def hosts(self) -> dict[int, str]:
        """The host on which each rank of a gang was last; parts and an ensemble's members have none of their own."""
        if self.noun != "rank":
            return {}
        return {event.rank: event.host for event in self.events if event.rank != DRIVER and event.host}

    def called(self, rank: int) -> str:
        """What a rank is called; with its host where there are several, without the domain."""
        host = self.hosts.get(rank, "") if len({*self.hosts.values()}) > 1 else ""
        if not host.replace(".", "").isdigit():
            host = host.partition(".")[0]
        return f"{self.noun} {rank}" + (f" ({host[:_MOST_HOST]})" if host else "")

    @property
    def unit(self) -> str:
        """What a row of the history is of: an epoch, a round, a member; ``"row"`` where it does not say."""
        return next((name for name in UNITS for row in self.history[:1] if name in row), "row")

    @cached_property
    def noun(self) -> str:
        """What events of one rank are of: a rank of a gang, a part of the rows, a member of an ensemble."""
        if self.unit != "row":
            return _NOUNS.get(self.unit, "rank")
        if self.of_kind("members"):
            return "member"
        return "part" if any("round" in event.payload for event in self.of_kind("span")) else "rank"

    @property
    def start(self) -> float:
        """When it began, as times of events; 0 where no event tells."""
        return self.events[0].time if self.events else 0.0

    @property
    def seconds(self) -> float:
        """From the first event to the last, without the time for which nothing ran."""
        return self.events[-1].time - self.events[0].time if self.events else 0.0

    def since(self, event: Event) -> float:
        """Seconds from the start to an event."""
        return event.time - self.start

    @property
    def state(self) -> str:
        """``"finished"``, ``"failed"``, or ``"open"``: it goes on, or was ended from outside."""
        ends = self._ends()
        if not ends:
            return "finished" if self.report or (self.history and not self.events) else "open"
        if ends[-1].kind == "begin":
            return "open"
        return "finished" if ends[-1].payload.get("error") is None else "failed"

    @property
    def error(self) -> str | None:
        """Why it failed; None where it has not."""
        return str(self._ends()[-1].payload["error"]) if self.state == "failed" else None

    def _ends(self) -> list[Event]:
        """Beginnings and ends, without those of fits that this directory was refused to."""
        found: list[Event] = []
        for event in self.of_kind("begin", "end"):
            if event.payload.get("refused") and len(found) > 1 and found[-1].kind == "begin":
                found.pop()
            else:
                found.append(event)
        return found


def read_runs(directories: Sequence[str]) -> list[RunData]:
    """Read several runs, and call each by as much of its path as tells it from the others.

    Args:
        directories: of the runs, paths or URIs.

    Raises:
        InvalidInput: one is given twice, or is none.
    """
    paths = [_path(directory) for directory in directories]
    for depth in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(path[-depth:]) for path in paths]
        if len({*names}) == len(names):
            return [RunData.read(directory, name) for directory, name in zip(directories, names, strict=True)]
    raise InvalidInput(
        f"of the runs {', '.join(map(masked, directories))} two are the same; expected each once, and at least one."
    )


def _path(directory: str) -> list[str]:
    """The parts of a directory's path, which has no credentials."""
    return files.Folder.of(directory).path.strip("/").split("/")


def _json(directory: str, name: str, kind: type) -> Any:
    path = files.join(directory, f"{name}.json")
    try:
        found = json.loads(files.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise InvalidInput(
            f"{name}.json in {masked(directory)} is damaged: {error}. Delete it, to go without."
        ) from error
    if not isinstance(found, kind):
        raise InvalidInput(
            f"{name}.json in {masked(directory)} is no {kind.__name__}; expected what a fit has written there."
        )
    return found


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
