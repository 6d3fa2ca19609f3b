"""Heartbeats: how the driver detects a dead, frozen or stuck worker.

A thread of every worker records ``heartbeat`` events with the worker's clock, host and phase. Two limits end an
attempt:

    timeout   no event of a worker arrives: its process is stopped, its host is down, or native code holds the GIL
    stall     clock and phase stay unchanged after a first step: a peer does not answer, or user code blocks

Before the first step, which may take long, only ``timeout`` counts. A worker without a first heartbeat cannot be lost,
since executors may be unable to reach the driver. Therefore a worker first waits briefly for that heartbeat's delivery.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from sparkdl.errors import ErrorContext, WorkerLost
from sparkdl.io.threads import watching
from sparkdl.telemetry.event import Event


def interval(timeout: float) -> float:
    """Seconds between heartbeats for a timeout of ``timeout`` seconds, within 0.2 to 10."""
    return min(max(timeout / 6, 0.2), 10.0)  # a few of six may be late


@contextmanager
def beating(beat: Callable[[], None], every: float | None) -> Iterator[None]:
    """Call ``beat()`` at once, and from a thread every ``every`` seconds within the block; None: never."""

    def run(ended: threading.Event) -> None:
        while not ended.wait(every):
            beat()

    if every is not None:
        beat()
    with watching(run, "sparkdl-heartbeat") if every is not None else nullcontext():
        yield


@dataclass
class _WorkerStatus:
    """The last known status of one worker: ``state`` is step and phase, ``first`` the first heartbeat's step."""

    received: float
    moved: float
    state: tuple[int | None, str | None] = (None, None)
    first: int | None = None
    host: str | None = None


class HeartbeatMonitor:
    """Tracks the workers of a gang and detects lost or stuck ones; all times are of one monotonic clock.

    Args:
        attempt: the attempt whose events count; events of other attempts are ignored.
        timeout: seconds without an event.
        stall: seconds without a change of any worker's clock or phase, after the first step.
    """

    def __init__(self, attempt: int, *, timeout: float, stall: float) -> None:
        self._attempt, self._timeout, self._stall = attempt, timeout, stall
        self._workers: dict[int, _WorkerStatus] = {}
        self._ended: set[int] = set()

    def note(self, event: Event, now: float) -> None:
        """Record that a worker is alive; any event proves it."""
        rank = event.rank
        if event.attempt != self._attempt or rank in self._ended:
            return
        if event.kind in ("failed", "finished"):
            self._ended.add(rank)
            self._workers.pop(rank, None)
        elif event.kind == "heartbeat":
            worker = self._workers.setdefault(rank, _WorkerStatus(now, now))
            step = None if event.clock is None else event.clock["step"]
            state = step, event.payload.get("phase")
            worker.first = step if worker.first is None else worker.first
            worker.moved = now if state != worker.state else worker.moved
            worker.received, worker.state, worker.host = now, state, event.payload.get("host")
        elif rank in self._workers:
            self._workers[rank].received = now

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by ``seconds`` in which this process did not run."""
        for worker in self._workers.values():
            worker.received += seconds
            worker.moved += seconds

    def lost(self, now: float) -> WorkerLost | None:
        """The error that ends the attempt; None while all workers are alive and progress."""
        for rank, worker in sorted(self._workers.items()):
            if now - worker.received > self._timeout:
                return self._error(rank, f"rank {rank} sent nothing for {now - worker.received:.0f} s.")
        stuck = [
            (worker.state[0] or 0, rank)
            for rank, worker in self._workers.items()
            if worker.first is not None and (worker.state[0] or 0) > worker.first and now - worker.moved > self._stall
        ]
        # In a block of local steps, fast workers wait while slow ones still train.
        if not stuck or any(now - worker.moved <= self._stall for worker in self._workers.values()):
            return None
        step, rank = min(stuck)  # the others wait for the slowest worker
        phase = self._workers[rank].state[1]
        message = f"rank {rank} is alive but made no progress for {self._stall:.0f} s, at step {step} in phase {phase}."
        return self._error(rank, message)

    def _error(self, rank: int, message: str) -> WorkerLost:
        worker = self._workers[rank]
        step, phase = worker.state
        return WorkerLost(message, context=ErrorContext(phase, rank, worker.host, self._attempt, step))
