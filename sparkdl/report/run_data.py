"""A run's data for the report page, read from the run's directory."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import masked
from sparkdl.telemetry.chrome_trace import DRIVER, MOST, Clocks
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events

UNITS = ("trial", "member", "candidate", "round", "epoch")
"""Possible units of a history row; a row of an ensemble's member has its last epoch's metrics as well."""

_OF_DRIVER = frozenset(("begin", "end", "attempt", "restart", "resized", "members", "trials", "trial"))

# A worker's stages, and the most similar phases.
_STAGES = {"imports": "other", "feed": "feed", "join": "exchange", "set up": "other"}
_ASIDE = ("rounds", "values", "ended", "progress")  # of a row in an event
_MOST_HOST = 24  # characters of a host's name beside a chart
_NOUNS = {"trial": "trial", "member": "member", "candidate": "member", "round": "shard"}


@dataclass(frozen=True)
class StepChunk:
    """Some steps of a rank: the end of the last in seconds on the events' clock, seconds by phase, and used rows."""

    rank: int
    end: float
    seconds: dict[str, float]
    rows: int = 0

    @property
    def start(self) -> float:
        """Start of the first step."""
        return self.end - sum(self.seconds.values())


@dataclass(frozen=True)
class RunData:
    """A run, finished or not.

    Attributes:
        name: distinguishes the run on the page.
        history: a row per epoch, round or member; for an unfinished run, the rows so far.
        report: the run's report; empty for an unfinished or failed run.
        configuration: the run's configuration.
        events: events of workers and the driver, sorted by time, in unix seconds on one clock and without pauses.
        last: real time of the last event, in unix seconds; None without events.
        odd: number of lines in the run's event files that are no readable events.
    """

    name: str
    history: Sequence[dict[str, Any]] = ()
    report: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()
    last: float | None = None
    odd: int = 0

    @classmethod
    def read(cls, directory: str, name: str | None = None) -> RunData:
        """Read a run's directory, a path or URI; ``name`` defaults to the directory's.

        Raises:
            InvalidInput: the directory holds no run, or a file of it is damaged.
        """
        history, report = _json(directory, "history", list), _json(directory, "report", dict)
        configuration = _json(directory, "config", dict)
        odd: list[str] = []
        events = read_events(files.join(directory, "events"), most=MOST, odd=odd)
        if not events and history is None and report is None and configuration is None:
            raise InvalidInput(
                f"{masked(directory)} holds no run; expected the runDir of a fit, with config.json, history.json or "
                "events/."
            )
        events, last = clean_events(events)
        history = [row for row in history or () if isinstance(row, dict)]
        data = cls(name or _path(directory)[-1], history, report or {}, configuration or {}, events, last, len(odd))
        # After a restart of the run, its files describe the time before it.
        return data if data.state == "finished" else replace(data, report={}, history=merged(data.history, events))

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of these kinds, sorted by time."""
        return [event for event in self.events if event.kind in kinds]

    def step_chunks(self) -> Iterator[StepChunk]:
        """The steps of all step events, sorted by time."""
        for event in self.of_kind("step"):
            yield StepChunk(event.rank, event.time, event.payload["seconds"], event.payload["rows"])

    def stages(self) -> Iterator[StepChunk]:
        """Workers' stages before their first step, and the gaps between the stages, in the form of steps."""
        ends: dict[tuple[int, int], float] = {}
        for event in self.of_kind("started", "span"):
            key = event.rank, event.attempt
            if event.kind == "started":
                ends[key] = event.time
            elif event.payload["name"] in _STAGES and event.rank != DRIVER:
                stage = StepChunk(event.rank, event.time, {_STAGES[event.payload["name"]]: event.payload["seconds"]})
                before = ends.get(key, stage.start)
                if stage.start > before:
                    yield StepChunk(event.rank, stage.start, {"other": stage.start - before})
                ends[key] = event.time
                yield stage

    def phases(self) -> dict[int, dict[str, float]]:
        """Seconds by rank and phase, from the report or, without one, from the events."""
        if reported := self.report.get("phases_by_rank"):
            return dict(enumerate(reported))
        seconds: dict[int, Counter[str]] = defaultdict(Counter)
        for chunk in self.step_chunks():
            seconds[chunk.rank].update(chunk.seconds)
        return {rank: dict(seconds[rank]) for rank in sorted(seconds)}

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Last host of each rank of a gang; empty for shards and ensemble members."""
        if self.noun != "rank":
            return {}
        return {event.rank: event.host for event in self.events if event.rank != DRIVER and event.host}

    def called(self, rank: int) -> str:
        """Label of a rank; with several hosts, it includes the short host name."""
        host = self.hosts.get(rank, "") if len({*self.hosts.values()}) > 1 else ""
        if not host.replace(".", "").isdigit():
            host = host.partition(".")[0]
        return f"{self.noun} {rank}" + (f" ({host[:_MOST_HOST]})" if host else "")

    @property
    def unit(self) -> str:
        """Unit of a history row: an epoch, a round, a member; ``"row"`` if unknown."""
        return next((name for name in UNITS for row in self.history[:1] if name in row), "row")

    @property
    def best(self) -> int | None:
        """The best epoch, round, member or candidate; None if they were not compared."""
        marked = (row[self.unit] for row in self.history if row.get("best") is True)
        return next(marked, self.report.get(f"best_{self.unit}"))

    @cached_property
    def noun(self) -> str:
        """Meaning of an event's rank: ``"rank"`` of a gang, ``"shard"`` of a round, ``"member"`` of an ensemble."""
        if self.unit != "row":
            return _NOUNS.get(self.unit, "rank")
        if self.of_kind("members", "trials"):
            return "member" if self.of_kind("members") else "trial"
        return "shard" if any("round" in event.payload for event in self.of_kind("span")) else "rank"

    @property
    def start(self) -> float:
        """Time of the first event; 0 without events."""
        return self.events[0].time if self.events else 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the first event to the last, without pauses."""
        return self.events[-1].time - self.start if self.events else 0.0

    def since(self, event: Event) -> float:
        """Seconds from the start to an event."""
        return event.time - self.start

    @property
    def state(self) -> str:
        """``"finished"``, ``"failed"``, or ``"open"`` for a run that is still running or was killed."""
        if not (ends := self._ends()):
            return "finished" if self.report or (self.history and not self.events) else "open"
        if ends[-1].kind == "begin":
            return "open"
        return "finished" if ends[-1].payload.get("error") is None else "failed"

    @property
    def error(self) -> str | None:
        """The error of a failed run; None in other states."""
        return str(self._ends()[-1].payload["error"]) if self.state == "failed" else None

    def _ends(self) -> list[Event]:
        ends: list[Event] = []
        for event in self.of_kind("begin", "end"):
            if event.payload.get("refused") and len(ends) > 1 and ends[-1].kind == "begin":
                ends.pop()
            else:
                ends.append(event)
        return ends


def read_runs(directories: Sequence[str]) -> list[RunData]:
    """Read several runs; each name is the shortest end of the run's path that is unique.

    Args:
        directories: paths or URIs of the runs.

    Raises:
        InvalidInput: a run is given twice, or a directory holds no run, or there are no directories.
    """
    paths = [_path(directory) for directory in directories]
    for depth in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(path[-depth:]) for path in paths]
        if len({*names}) == len(names):
            return [RunData.read(directory, name) for directory, name in zip(directories, names, strict=True)]
    raise InvalidInput(
        f"the runs are {', '.join(map(masked, directories)) or 'none'}; expected at least one, and each once."
    )


def _path(directory: str) -> list[str]:
    return files.Folder.of(directory).path.strip("/").split("/")


def _json(directory: str, name: str, kind: type) -> Any:
    where = f"{name}.json in {masked(directory)}"
    try:
        value = json.loads(files.read(files.join(directory, f"{name}.json")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise InvalidInput(f"{where} is damaged: {error}. Delete it to continue without it.") from error
    if not isinstance(value, kind):
        raise InvalidInput(f"{where} is no {kind.__name__}; expected the file that a fit writes.")
    return value


def clean_events(events: Sequence[Event]) -> tuple[list[Event], float | None]:
    """Align clocks, remove pauses, the times between a run's end and its restart, and workers' events of the driver.

    Also returns the real time of the last event in unix seconds; None without events.
    """
    clocks = Clocks.of(events)
    valid = [event for event in events if event.rank == DRIVER or event.kind not in _OF_DRIVER]
    aligned = [replace(event, time=clocks.corrected(event.host, event.time)) for event in valid]
    cleaned: list[Event] = []
    pause, last = 0.0, None
    for event in sorted(aligned, key=lambda event: event.time):
        if event.kind == "begin" and last is not None:
            pause += event.time - last
        last = event.time
        cleaned.append(replace(event, time=event.time - pause) if pause else event)
    return cleaned, last


def merged(history: Sequence[Mapping[str, Any]], events: Sequence[Event]) -> list[dict[str, Any]]:
    """Merge an unfinished run's history from its files with rows from its events, which are sorted by time."""
    kinds = {event.kind for event in events}
    if kinds & {"member", "members", "trials"}:  # members' and trials' tasks record epochs of their own
        rows = [event.payload for event in events if event.kind in ("member", "trial")]
    else:
        rows = [event.payload for event in events if event.kind in ("epoch", "round") and event.rank <= 0]
    by_unit: dict[Any, dict[str, Any]] = {}
    for row in [*history, *rows]:
        unit = next((name for name in UNITS if name in row), None)
        # Repeated work: keep the last row. Only the progress bar and charts need the others.
        key = unit, row[unit] if unit else len(by_unit)
        by_unit[key] = {name: value for name, value in row.items() if name not in _ASIDE}
    return list(by_unit.values())
