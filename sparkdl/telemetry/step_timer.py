"""Timing of a worker's steps by phase.

A worker is always in exactly one phase, so a run's phases add up to its wall time:

    feed        waits for the next batch
    forward     computes the model's output and the loss
    backward    computes gradients; an overlapping exchange costs no time of its own
    exchange    waits for the other workers' data
    update      clips gradients and runs the optimizer's step
    validate    runs the model on the validation rows
    checkpoint  waits until its state is copied
    callbacks   runs the user's callbacks
    other       everything else

Code that takes part in a step marks the beginning of a phase, as ``enter_phase("forward")`` inside
``with measuring(StepTimer())``, and its end by ``end_step``. Without a ``StepTimer`` in this thread that does nothing.

A worker records an event of kind ``"step"`` at most every ``EVERY`` seconds, in long runs less often; after a step with
a rare phase, at once. The event sums all steps since the previous event: ``steps``, ``seconds`` by phase, ``rows`` and
``bytes``. It details the last of them: ``start`` (unix seconds), ``marks`` (each phase and its seconds after ``start``)
and ``end``. On a GPU, phases are the host thread's: a kernel's time appears in the phase in which the thread waits.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.data.clock import Clock
from sparkdl.telemetry.emit import record

PHASES = ("feed", "forward", "backward", "exchange", "update", "validate", "checkpoint", "callbacks", "other")
"""All phases, in the order of tables and charts."""
EVERY = 0.1
"""Shortest time between two step events, in seconds."""
_MOST = 20_000  # step events of a run, about: after half an hour the time between them grows

_RARE = frozenset(("validate", "checkpoint"))
_REST = "other"


class _Present(threading.local):
    timer: StepTimer | None = None


_present = _Present()


class StepTimer:
    """Timer of one thread's steps, starting now.

    Args:
        seconds: seconds by phase, to which every event adds; default: empty.
        every: shortest time between two events, in seconds.
        now: increasing clock in seconds.
    """

    def __init__(
        self,
        seconds: dict[str, float] | None = None,
        *,
        every: float = EVERY,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds = {} if seconds is None else seconds
        self._every, self._now = every, now
        self.phase, self._since = _REST, now()
        self._first = self._began = self._since  # start of the first step, and of this step
        self._recorded = float("-inf")  # time of the last event
        self._spent: defaultdict[str, float] = defaultdict(float)  # seconds by phase since the last event
        self._steps = self._rows = self._sent = 0  # since the last event
        self._marks: list[tuple[str, float]] | None = [(_REST, self._since)]  # of this step; None: no detail
        self._rare = False

    def switch(self, phase: str, *, count: bool = True) -> float:
        """Add the time since the last call to the present phase, if ``count``; continue in ``phase``; return now."""
        now = self._now()
        if count:
            self._spent[self.phase] += now - self._since
        self.phase, self._since = phase, now
        return now

    def enter_phase(self, phase: str) -> None:
        """End the present phase and begin another."""
        if phase == self.phase:
            return
        now = self.switch(phase)
        if phase in _RARE:
            self._rare = True
            self._marks = self._marks or []
        if self._marks is not None:
            self._marks.append((phase, now))

    def end_step(self, *, clock: Clock | None, rows: int, sent: int, steps: int) -> None:
        """End a step, as the module's ``end_step`` does."""
        now = self.switch(_REST)
        self._steps += steps
        self._rows += rows
        self._sent += sent
        every = max(self._every, (now - self._first) / _MOST)
        if self._rare or (self._marks and now - self._recorded >= every):
            self._record(clock, self._marks or [(_REST, now)], now)
        # Marks cost a little: take them only if the next step, as long as this one, will likely be recorded.
        self._marks = [(_REST, now)] if now + (now - self._began) - self._recorded >= every else None
        self._began = now

    def flush(self, clock: Clock | None) -> None:
        """Record an event of the steps since the last event."""
        now = self.switch(self.phase)
        self._record(clock, self._marks or [(self.phase, now)], now)

    def _record(self, clock: Clock | None, marks: list[tuple[str, float]], end: float) -> None:
        for phase, seconds in self._spent.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        first = marks[0][1]
        record(
            "step",
            clock=clock,
            steps=self._steps,
            rows=self._rows,
            bytes=self._sent,
            seconds={phase: round(seconds, 7) for phase, seconds in self._spent.items()},
            start=time.time() - (self._now() - first),
            marks=[[phase, round(at - first, 7)] for phase, at in marks],
            end=round(end - first, 7),
        )
        self._spent.clear()
        self._steps = self._rows = self._sent = 0
        self._recorded, self._rare = end, False


@contextmanager
def measuring(timer: StepTimer | None) -> Iterator[StepTimer | None]:
    """Make ``timer`` this thread's timer inside the block, then restore the previous one; None switches timing off."""
    outer = _present.timer
    if outer is not None and timer is not None:
        outer.switch(outer.phase)
    _present.timer = timer
    try:
        yield timer
    finally:
        _present.timer = outer
        if outer is not None and timer is not None:
            outer.switch(outer.phase, count=False)


def enter_phase(phase: str) -> None:
    """Begin a phase, one of ``PHASES``, of this thread's worker."""
    if (timer := _present.timer) is not None:
        timer.enter_phase(phase)


@contextmanager
def inner_phase(phase: str) -> Iterator[None]:
    """Spend the block in a phase, and continue in the phase before it."""
    timer = _present.timer
    before = _REST if timer is None else timer.phase
    enter_phase(phase)
    yield
    enter_phase(before)


def end_step(*, clock: Clock | None = None, rows: int = 0, sent: int = 0, steps: int = 1) -> None:
    """End a step of this thread's worker, who used ``rows`` rows and sent ``sent`` bytes to other workers in it.

    ``clock`` includes the step. ``steps`` is 0 for work between two steps, such as validation.
    """
    if (timer := _present.timer) is not None:
        timer.end_step(clock=clock, rows=rows, sent=sent, steps=steps)


def flush(*, clock: Clock | None = None) -> None:
    """Record the steps that no event covers yet; call it last."""
    if (timer := _present.timer) is not None:
        timer.flush(clock)
