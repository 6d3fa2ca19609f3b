"""Heartbeats: how the driver detects a dead, frozen or stuck worker.

A thread of every worker records ``heartbeat`` events with the worker's clock, host and phase. Any event proves that
its worker is alive. Two limits end an attempt:

    timeout   no event of a worker arrives: its process is stopped, its host is down, or native code holds the GIL
    stall     clock and phase stay unchanged after a first step: a peer does not answer, or user code blocks

Before the first step, which may take long, only ``timeout`` counts. A worker without a first heartbeat cannot be lost,
since executors may be unable to reach the driver. Therefore a worker first waits briefly for that heartbeat's delivery.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkdl.errors import ErrorContext, WorkerLost
from sparkdl.io.threads import watching
from sparkdl.telemetry.event import Event

_PER_TIMEOUT = 6  # heartbeats within the timeout: a few may be late
_LEAST, _MOST = 0.2, 10.0  # seconds between heartbeats


def interval(timeout: float) -> float:
    """Seconds between heartbeats for a timeout of ``timeout`` seconds, within 0.2 to 10."""
    return min(max(timeout / _PER_TIMEOUT, _LEAST), _MOST)


@contextmanager
def beating(beat: Callable[[], None], every: float | None) -> Iterator[None]:
    """Call ``beat()`` at once, and from a thread every ``every`` seconds within the block; None: never."""
    if every is None:
        yield
        return

    def run(ended: threading.Event) -> None:
        while not ended.wait(every):
            beat()

    beat()
    with watching(run, "sparkdl-heartbeat"):
        yield


@dataclass
class _WorkerStatus:
    """The last known status of one worker; ``first`` is the step of its first heartbeat with a clock."""

    received: float
    moved: float
    state: tuple[int | None, str | None] = (None, None)
    first: int | None = None
    host: str | None = None


class HeartbeatMonitor:
    """Tracks the workers of a gang and detects lost or stuck ones.

    Args:
        attempt: the attempt whose events count; events of other attempts are ignored.
        timeout: seconds without an event.
        stall: seconds without a change of clock or phase, after the first step.
    """

    def __init__(self, attempt: int, *, timeout: float, stall: float) -> None:
        self._attempt, self._timeout, self._stall = attempt, timeout, stall
        self._signs: dict[int, _WorkerStatus] = {}
        self._ended: set[int] = set()

    def note(self, event: Event, now: float) -> None:
        """Record that a worker is alive.

        Args:
            event: of any worker and kind.
            now: the local time in seconds of a monotonic clock.
        """
        if event.attempt != self._attempt or event.rank in self._ended:
            return
        if event.kind in ("failed", "finished"):
            self._ended.add(event.rank)
            self._signs.pop(event.rank, None)
        elif event.kind == "heartbeat":
            self._move(event, now)
        elif event.rank in self._signs:
            self._signs[event.rank].received = now

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by ``seconds`` in which this process did not run."""
        for sign in self._signs.values():
            sign.received += seconds
            sign.moved += seconds

    def lost(self, now: float) -> WorkerLost | None:
        """The error that ends the attempt; None while all workers are alive and progress."""
        for rank, sign in sorted(self._signs.items()):
            if now - sign.received > self._timeout:
                return self._error(rank, f"rank {rank} sent nothing for {now - sign.received:.0f} s.")
        stuck = [
            (sign.state[0] or 0, rank)
            for rank, sign in self._signs.items()
            if sign.first is not None and (sign.state[0] or 0) > sign.first and now - sign.moved > self._stall
        ]
        if not stuck:
            return None
        step, rank = min(stuck)  # the others wait for the slowest worker
        phase = self._signs[rank].state[1]
        message = f"rank {rank} is alive but made no progress for {self._stall:.0f} s, at step {step} in phase {phase}."
        return self._error(rank, message)

    def _move(self, event: Event, now: float) -> None:
        sign = self._signs.setdefault(event.rank, _WorkerStatus(now, now))
        step = None if event.clock is None else event.clock["step"]
        state = step, event.payload.get("phase")
        if sign.first is None:
            sign.first = step
        if state != sign.state:
            sign.moved = now
        sign.received, sign.state, sign.host = now, state, event.payload.get("host")

    def _error(self, rank: int, message: str) -> WorkerLost:
        sign = self._signs[rank]
        return WorkerLost(message, place=ErrorContext(sign.state[1], rank, sign.host, self._attempt, sign.state[0]))
