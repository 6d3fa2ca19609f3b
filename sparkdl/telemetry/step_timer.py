"""What a member spends the seconds of its steps on.

At any moment of its training a member is in one phase, so the phases of a run add up to its wall time:

    feed        it waits for its next batch
    forward     the model's output and the loss
    backward    gradients; an exchange that goes on beside it costs no time of its own
    exchange    it waits for what the other members give
    update      clipping, and the optimizer's step
    validate    the model on the validation rows
    checkpoint  it cannot go on because its state is being copied
    hooks       the user's own code
    other       everything else

Code that takes part in a step says where a phase begins; without a ``Laps`` in this thread that does nothing::

    with measuring(Laps()) as laps:
        enter("forward")
        ...
        enter("backward")
        ...
        end_step(clock=clock, rows=32)

The events. A member records an event of kind ``"step"`` at most every ``EVERY`` seconds, later on more seldom, and at
once where a step holds a rare phase. It tells of all steps since the one before, and of the last of them in detail:
``steps``, their ``seconds`` by phase, ``rows`` and ``bytes``; ``start`` (unix seconds) of the last one, its ``marks``
(phase and the seconds from ``start`` at which it began) and its ``end``. So sums over all events are exact however fast
steps are, and the timeline has as many steps as it can show.

On a GPU phases are those of the host's thread: kernels run behind it, and the time they take is seen where the thread
waits for them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import record

__all__ = ["EVERY", "PHASES", "Laps", "end_step", "enter", "flush", "measuring"]

PHASES = ("feed", "forward", "backward", "exchange", "update", "validate", "checkpoint", "hooks", "other")
"""All phases, in the order in which tables and charts show them."""
EVERY = 0.1
"""Seconds between two events of steps, at least."""
_MOST = 20_000  # events of steps until the time between them grows with the run, which is after half an hour

_RARE = frozenset(("validate", "checkpoint"))
_REST = "other"

_here = threading.local()


class Laps:
    """The phases of one thread's steps, from now on.

    Args:
        seconds: by phase, to add to.
        every: seconds between two events.
        now: seconds from some point on, increasing.

    Attributes:
        seconds: by phase, of the steps up to the last event.
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
        self._phase, self._since = _REST, now()
        self._first = self._began = self._since  # when the first step began, and when this one did
        self._told = float("-inf")  # when the last event was recorded
        self._untold: defaultdict[str, float] = defaultdict(float)  # seconds since then, by phase
        self._steps = self._rows = self._sent = 0  # since then
        self._marks: list[tuple[str, float]] | None = [(_REST, self._since)]  # of this step; None for no detail
        self._rare = False

    def enter(self, phase: str) -> None:
        """This phase begins, and the one before is over."""
        now = self._now()
        self._untold[self._phase] += now - self._since
        self._phase, self._since = phase, now
        if phase in _RARE:
            self._rare = True
            self._marks = self._marks or []
        if self._marks is not None:
            self._marks.append((phase, now))

    def end_step(self, *, clock: Clock | None, rows: int, sent: int, steps: int) -> None:
        """See the module's ``end_step``."""
        now = self._now()
        self._untold[self._phase] += now - self._since
        self._phase, self._since = _REST, now
        self._steps += steps
        self._rows += rows
        self._sent += sent
        every = max(self._every, (now - self._first) / _MOST)
        if self._rare or (self._marks and now - self._told >= every):
            self._tell(clock, self._marks or [(_REST, now)], now)
        # The next step is looked at in detail if it is likely to be told of, as long as this one: marks cost a little.
        self._marks = [(_REST, now)] if now + (now - self._began) - self._told >= every else None
        self._began = now

    def flush(self, clock: Clock | None) -> None:
        """Tell of the steps since the last event."""
        now = self._now()
        self._untold[self._phase] += now - self._since
        self._since = now
        self._tell(clock, self._marks or [(self._phase, now)], now)

    def pause(self) -> None:
        """Others measure from now on."""
        now = self._now()
        self._untold[self._phase] += now - self._since
        self._since = now

    def resume(self) -> None:
        """What has passed since ``pause`` others have measured."""
        self._since = self._now()

    def _tell(self, clock: Clock | None, marks: list[tuple[str, float]], end: float) -> None:
        for phase, seconds in self._untold.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        first = marks[0][1]
        record(
            "step",
            clock=clock,
            steps=self._steps,
            rows=self._rows,
            bytes=self._sent,
            seconds={phase: round(seconds, 7) for phase, seconds in self._untold.items()},
            start=time.time() - (self._now() - first),
            marks=[[phase, round(at - first, 7)] for phase, at in marks],
            end=round(end - first, 7),
        )
        self._untold.clear()
        self._steps = self._rows = self._sent = 0
        self._told, self._rare = end, False


@contextmanager
def measuring(laps: Laps | None) -> Iterator[Laps | None]:
    """Make ``laps`` those that ``enter`` and ``end_step`` use in this thread, then restore; None for none."""
    before: Laps | None = getattr(_here, "laps", None)
    if before is not None and laps is not None:
        before.pause()
    _here.laps = laps
    try:
        yield laps
    finally:
        _here.laps = before
        if before is not None and laps is not None:
            before.resume()


def enter(phase: str) -> None:
    """From now on this thread's member is in this phase, one of ``PHASES``."""
    laps: Laps | None = getattr(_here, "laps", None)
    if laps is not None:
        laps.enter(phase)


def end_step(*, clock: Clock | None = None, rows: int = 0, sent: int = 0, steps: int = 1) -> None:
    """A step is over.

    Args:
        clock: how far the run has come with it.
        rows: that this member has used in it.
        sent: bytes that this member has given to the others in it.
        steps: 0 for what came between two steps, as validation.
    """
    laps: Laps | None = getattr(_here, "laps", None)
    if laps is not None:
        laps.end_step(clock=clock, rows=rows, sent=sent, steps=steps)


def flush(*, clock: Clock | None = None) -> None:
    """Tell at once of the steps that no event has told of yet; the last thing that is measured."""
    laps: Laps | None = getattr(_here, "laps", None)
    if laps is not None:
        laps.flush(clock)
