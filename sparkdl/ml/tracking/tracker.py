"""Hooks that are called on the driver: trackers, above all.

The driver has the credentials, the network and the files that a tracker needs, and it is there in rounds too, whose
tasks come and go. A hook with an attribute ``on_driver`` that is true is called there, and never travels:

    on_start(run)    the run begins
    on_step(run)     a gang is on its way; a few times a second at most, with the latest ``values``
    on_epoch(run)    there is another row of the history, of an epoch, a round or a member: once for each
    on_end(run)      the run is over: ``model`` is what came of it, or ``error`` says why there is none

All but the last are called in a thread of their own, which training does not wait for, as events come in: best effort.
A run that goes on from where it was left is first told of its earlier rows; rows that no event has told of, on_epoch is
called with before on_end. What a hook raises is a warning.

A hook may have a method ``prepare(run)`` as well. It is called in the thread that called ``fit``, before anything is
launched, and what it raises refuses the fit. What it returns is called in the hook's place, if it returns anything: so
a hook can serve several runs, also at a time, and keep what it has of one of them apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.telemetry.event import Event
from sparkdl.training.callbacks import MOMENTS, check_hooks

__all__ = ["DriverHooks", "DriverRun", "apart"]

_ROWS = ("member", "round", "epoch")  # what a row is of; a member's has the figures of its last epoch as well


@dataclass
class DriverRun:
    """What a hook on the driver is shown of its run.

    Attributes:
        name: of the run.
        directory: of the run, a path or URI; None where it has none.
        configuration: the estimator's Params as JSON values by name.
        environment: versions and machines.
        history: the rows so far, each once; the last one is new in ``on_epoch``.
        clock: ``epoch``, ``step`` and ``samples`` so far, of a gang; empty in rounds and ensembles.
        values: the latest ``loss`` and ``rows_per_second`` of a gang.
        report: what the run took; empty before ``on_end``.
        model: the fitted model; None before ``on_end``, and where there is none.
        error: why there is no model; None where there is one.
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


class DriverHooks:
    """A listener that calls hooks.

    Args:
        hooks: the user's objects.
        run: what they are shown.

    Raises:
        InvalidInput: a hook has none of the methods, or cannot be used with this run.
    """

    def __init__(self, hooks: Sequence[Any], run: DriverRun) -> None:
        self._hooks, self._run = [_prepared(hook, run) for hook in hooks], run
        check_hooks(self._hooks)
        self._names = [type(hook).__name__ for hook in hooks]
        self._warned: set[int] = set()

    def wants(self, event: Event) -> bool:
        """Whether a hook is called for an event of this kind."""
        return event.kind in ("begin", "restored", *_ROWS) or (event.kind == "progress" and event.rank == 0)

    def __call__(self, event: Event) -> None:
        """Call the hooks that an event is for."""
        run, told = self._run, event.payload
        if event.kind == "begin":
            run.environment = dict(told.get("environment", {}))
            self._call("on_start")
        elif event.kind == "progress" and event.rank == 0 and event.clock is not None:
            run.clock = dict(event.clock)
            known = {name: told.get(name) for name in ("loss", "rows_per_second")}
            run.values = {name: value for name, value in known.items() if value is not None}
            self._call("on_step")
        elif event.kind == "restored":
            for row in told.get("history", ()):
                self._row(row)
        elif event.kind in _ROWS:
            run.clock = dict(event.clock or {})
            self._row(told)

    def finish(
        self,
        history: Sequence[dict[str, Any]] = (),
        *,
        report: Mapping[str, Any] | None = None,
        model: Any = None,
        error: str | None = None,
    ) -> None:
        """The run is over; called once, when no event comes any more.

        Args:
            history: all rows.
            report: what the run took.
            model: what came of it.
            error: why nothing did.
        """
        for row in history:
            self._row(row)
        if history:
            self._run.history = list(history)
        self._run.report, self._run.model, self._run.error = report or {}, model, error
        self._call("on_end")

    def _row(self, row: dict[str, Any]) -> None:
        name = next((each for each in _ROWS if each in row), None)
        if name is None or any(name in each and each[name] == row[name] for each in self._run.history):
            return  # told before the attempt that it was told in failed
        self._run.history.append(dict(row))
        self._call("on_epoch")

    def _call(self, moment: str) -> None:
        assert moment in MOMENTS
        for name, hook in zip(self._names, self._hooks, strict=True):
            method = getattr(hook, moment, None)
            if method is None:
                continue
            try:
                method(self._run)
            except Exception as error:  # a tracker that fails must not cost the run
                if id(hook) not in self._warned:
                    self._warned.add(id(hook))
                    warnings.warn(
                        f"{name}.{moment} failed: {type(error).__name__}: {error}. Its later failures are not told.",
                        RuntimeWarning,
                        stacklevel=2,
                    )


def _prepared(hook: Any, run: DriverRun) -> Any:
    prepare = getattr(hook, "prepare", None)
    made = None if prepare is None else prepare(run)
    return hook if made is None else made


def apart(hooks: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Hooks that travel to the members, and those that are called on the driver."""
    here = [hook for hook in hooks if getattr(hook, "on_driver", False)]
    return [hook for hook in hooks if not getattr(hook, "on_driver", False)], here
