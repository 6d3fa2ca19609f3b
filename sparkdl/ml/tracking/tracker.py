"""Trackers: callbacks that run on the driver.

The driver has the credentials, network access and files that a tracker needs, for gangs and for rounds. A
tracker runs there, is never pickled, and has at least one of these methods:

    on_start(run)    the run begins
    on_step(run)     a gang trains; a few times a second at most, with the latest ``values``
    on_epoch(run)    the history has a new row, of an epoch, a round, a member or a trial; once per row
    on_end(run)      the run is over; ``model`` is the fitted model, or ``error`` says why there is none

The methods run in their own thread as events arrive, on best effort; only ``on_end`` delays ``fit``. A run that
resumes first replays its earlier rows. Rows without an event reach ``on_epoch`` before ``on_end``. If a method raises,
sparkdl warns.

A tracker may have a method ``prepare(run)``, called in the thread of ``fit`` before workers start. If it raises,
``fit`` fails. If it returns an object, the methods of that object are called instead. So one tracker serves several
runs, also concurrent ones, with separate state.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.telemetry.event import Event
from sparkdl.training.callbacks.callback import check_methods

_LIVE = ("member", "round", "epoch")
ROWS = ("trial", *_LIVE)  # the kinds of rows; a member's row also has the figures of its last epoch


@dataclass
class TrackerContext:
    """A run, as trackers see it.

    Attributes:
        name: of the run.
        directory: of the run, a path or URI; default: none.
        configuration: the estimator's Params as JSON values by name.
        environment: versions and hosts.
        history: the rows so far, each once; the last one is new in ``on_epoch``.
        clock: ``epoch``, ``step`` and ``samples`` so far, of a gang; empty in rounds and ensembles.
        values: the latest ``loss`` and ``rows_per_second`` of a gang.
        report: seconds, rows, bytes and more; empty before ``on_end``.
        model: the fitted model; None before ``on_end`` and if the fit failed.
        error: why the fit failed; None if it did not.
    """

    name: str
    directory: str | None = None
    configuration: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    clock: dict[str, int] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None
    error: str | None = None


class TrackerList:
    """Calls trackers as events arrive; raises ``InvalidInput`` for a tracker that cannot be used."""

    def __init__(self, trackers: Sequence[Any], run: TrackerContext) -> None:
        prepared = [tracker.prepare(run) if hasattr(tracker, "prepare") else None for tracker in trackers]
        self._trackers = [tracker if new is None else new for tracker, new in zip(trackers, prepared, strict=True)]
        check_methods("trackers", self._trackers)
        self._run, self._names = run, [type(tracker).__name__ for tracker in trackers]
        self._warned: set[int] = set()

    def wants(self, event: Event) -> bool:
        """Whether an event of this kind calls a tracker."""
        return event.kind in ("begin", "restored", *_LIVE) or (event.kind == "progress" and event.rank == 0)

    def __call__(self, event: Event) -> None:
        """Call the trackers for an event."""
        run, payload = self._run, event.payload
        if event.kind == "begin":
            run.environment = dict(payload.get("environment", {}))
            self._call("on_start")
        elif event.kind == "progress" and event.rank == 0 and event.clock is not None:
            run.clock = dict(event.clock)
            run.values = {name: payload[name] for name in ("loss", "rows_per_second") if payload.get(name) is not None}
            self._call("on_step")
        elif event.kind == "restored":
            for row in payload.get("history", ()):
                self._add(row)
        elif event.kind in _LIVE:
            run.clock = dict(event.clock or {})
            self._add(payload)

    def finish(
        self,
        history: Sequence[dict[str, Any]] = (),
        *,
        report: Mapping[str, Any] | None = None,
        model: Any = None,
        error: str | None = None,
    ) -> None:
        """Call ``on_epoch`` for missing rows of ``history``, then ``on_end``, once, after the last event."""
        for row in history:
            self._add(row)
        if history:
            self._run.history = list(history)
        self._run.report, self._run.model, self._run.error = report or {}, model, error
        self._call("on_end")

    def _add(self, row: dict[str, Any]) -> None:
        name = next((name for name in ROWS if name in row), None)
        if name is None or any(name in earlier and earlier[name] == row[name] for earlier in self._run.history):
            return  # the attempt before reported it
        self._run.history.append(dict(row))
        self._call("on_epoch")

    def _call(self, moment: str) -> None:
        for name, tracker in zip(self._names, self._trackers, strict=True):
            method = getattr(tracker, moment, None)
            try:
                if method is not None:
                    method(self._run)
            except Exception as error:  # a failing tracker must not fail the run
                if id(tracker) not in self._warned:
                    self._warned.add(id(tracker))
                    warnings.warn(
                        f"{name}.{moment} failed: {type(error).__name__}: {error}. Its next failures are silent.",
                        RuntimeWarning,
                        stacklevel=2,
                    )


def read_row(row: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The number of a row's member, round or epoch, and its other numbers by name, of a dict or a list ``name/key``."""
    name = next(name for name in ROWS if name in row)
    others = {key: value for key, value in row.items() if key not in (name, "rounds")}  # rounds is equal in every row
    return int(row[name]), dict(_figures("", others))


def is_number(value: object) -> bool:
    """Whether a value is a number, NaN and infinity included."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figures(before: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if is_number(value):
            yield before + name, float(value)
        elif isinstance(value, Mapping):
            yield from _figures(f"{before}{name}/", value)
        elif isinstance(value, list):  # such as a metric per class
            numbers = {str(key): number for key, number in enumerate(value) if is_number(number)}
            yield from _figures(f"{before}{name}/", numbers)
