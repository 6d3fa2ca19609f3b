"""Heartbeats: how the driver tells a member that works from one that is gone, frozen or stuck.

A thread of every member records a ``heartbeat`` event with the member's clock, host and phase. It travels with all
other events, and any event is a sign of life. Two limits end an attempt:

    timeout   nothing was heard of a member: its process is stopped, its host gone, or native code holds Python's lock
    stall     it is heard, but clock and phase have not changed, and it had taken a step: a peer does not answer, or
              the user's code waits for something

The first step takes as long as it takes, so that only ``timeout`` counts before it. A member that has never sent a
heartbeat is not judged: where executors cannot reach the driver nobody is. So a member waits a moment until its first
one is delivered, before it does anything in which it could be stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkdl.errors import MemberLost, Place
from sparkdl.telemetry.event import Event

_PER_TIMEOUT = 6  # heartbeats in the time after which a member counts as gone: a few may be late
_LEAST, _MOST = 0.2, 10.0  # seconds between heartbeats


def interval(timeout: float) -> float:
    """Seconds between heartbeats where a member counts as gone after ``timeout`` seconds of silence."""
    return min(max(timeout / _PER_TIMEOUT, _LEAST), _MOST)


@contextmanager
def beating(beat: Callable[[], None], every: float | None) -> Iterator[None]:
    """Call ``beat()`` at once, and in a thread every so many seconds, until the end of the block; None: never."""
    if every is None:
        yield
        return
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every):
            beat()

    beat()
    thread = threading.Thread(target=run, name="sparkdl-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass
class _Sign:
    """What is known of one member.

    Attributes:
        heard: when it was last heard of.
        moved: when its clock or phase last changed.
        state: clock and phase.
        first: the step at which it was first heard of, None before it has a clock.
        host: where it is.
    """

    heard: float
    moved: float
    state: tuple[int | None, str | None] = (None, None)
    first: int | None = None
    host: str | None = None


class Pulse:
    """What is heard of a gang's members, and which of them must be given up.

    Args:
        attempt: the attempt whose events count; those of others are late.
        timeout: seconds without a sign of life.
        stall: seconds without a change of clock or phase, once a step has been taken.
    """

    def __init__(self, attempt: int, *, timeout: float, stall: float) -> None:
        self._attempt, self._timeout, self._stall = attempt, timeout, stall
        self._signs: dict[int, _Sign] = {}
        self._ended: set[int] = set()

    def note(self, event: Event, now: float) -> None:
        """Take an event as a sign of life.

        Args:
            event: of any member and kind.
            now: the time here, in seconds of a clock that only goes forward.
        """
        if event.attempt != self._attempt or event.rank in self._ended:
            return
        if event.kind in ("failed", "finished"):
            self._ended.add(event.rank)
            self._signs.pop(event.rank, None)
        elif event.kind == "heartbeat":
            self._move(event, now)
        elif event.rank in self._signs:
            self._signs[event.rank].heard = now

    def forgive(self, seconds: float) -> None:
        """Leave out so many seconds, in which nobody could be heard because this process did not run."""
        for sign in self._signs.values():
            sign.heard += seconds
            sign.moved += seconds

    def lost(self, now: float) -> MemberLost | None:
        """The error to give the attempt up with; None while all is well."""
        for rank, sign in sorted(self._signs.items()):
            if now - sign.heard > self._timeout:
                return self._error(rank, f"rank {rank} has not been heard of for {now - sign.heard:.0f} s.")
        stuck = [
            (sign.state[0] or 0, rank)
            for rank, sign in self._signs.items()
            if sign.first is not None and (sign.state[0] or 0) > sign.first and now - sign.moved > self._stall
        ]
        if not stuck:
            return None
        step, rank = min(stuck)  # whoever is behind is what the others wait for
        phase = self._signs[rank].state[1]
        return self._error(rank, f"rank {rank} lives but has been at step {step}, {phase}, for {self._stall:.0f} s.")

    def _move(self, event: Event, now: float) -> None:
        sign = self._signs.setdefault(event.rank, _Sign(now, now))
        step = None if event.clock is None else event.clock["step"]
        state = step, event.payload.get("phase")
        if sign.first is None:
            sign.first = step
        if state != sign.state:
            sign.moved = now
        sign.heard, sign.state, sign.host = now, state, event.payload.get("host")

    def _error(self, rank: int, message: str) -> MemberLost:
        sign = self._signs[rank]
        return MemberLost(message, place=Place(sign.state[1], rank, sign.host, self._attempt, sign.state[0]))
