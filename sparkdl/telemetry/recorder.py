"""A member's recorder: a bounded queue, a thread that empties it, and a file for what the driver cannot take."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.channel import Event, Listener, plain
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.event_file import SECONDS, Journal
from sparkdl.telemetry.protocol import Connection, Endpoint

__all__ = ["Recorder"]

CONNECT_SECONDS = 3.0
"""What one address has to answer and prove itself."""
RECEIPT_SECONDS = 30.0
"""What the driver has to take a burst of events before the connection counts as broken."""
RETRY_SECONDS = (1.0, 30.0)
"""The first and the longest wait between two attempts to connect."""
BURST_EVENTS = 64
BURST_BYTES = 1 << 18
"""A burst, after which receipts are awaited, is cut at so many events or bytes."""
LINGER_SECONDS = 0.5
"""What an event that nobody waits for may wait for others, so that training is interrupted once for all of them."""
_PATIENT = frozenset(("step", "span"))

logger = logging.getLogger(__name__)

# Of drivers that did not answer: when to ask again, by the monotonic clock, and the wait before that. It is for the
# process and not for one recorder, since a process has as many as tasks run in it one after the other.
_silent: dict[Endpoint, tuple[float, float]] = {}


class Recorder:
    """Takes a member's events and sends them from a thread of its own.

    Args:
        endpoint: the driver's channel; None to keep everything in the fallback, or with ``listener``.
        rank: the member's rank in the gang.
        attempt: the attempt the gang is in, from 0.
        fallback: a folder, a path or URI, for ``rank-<rank>.attempt-<attempt>.jsonl``, made and appended to when the
            driver cannot be reached (see ``sparkdl.telemetry.event_file``); by default such events are dropped.
        capacity: events that may wait to be sent.
        listener: a function to call directly, one call at a time, for a member in the driver's own process; the
            queue and the fallback are then not needed. What it raises is logged once.

    Raises:
        InvalidInput: ``endpoint`` and ``listener`` are both given, or ``capacity`` is below 1.
    """

    def __init__(
        self,
        endpoint: Endpoint | None,
        *,
        rank: int,
        attempt: int = 0,
        fallback: str | os.PathLike[str] | None = None,
        capacity: int = 10_000,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        if listener is not None and endpoint is not None:
            raise InvalidInput("a recorder has an endpoint or a listener, this one was given both; leave one out")
        if capacity < 1:
            raise InvalidInput(f"capacity is {capacity!r}; give the number of events that may wait, at least 1")
        self.rank, self.attempt, self.id = rank, attempt, uuid.uuid4().hex[:12]
        self._capacity = capacity
        self._waiting: deque[Event] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()  # rings when somebody waits, with True at the end
        self._lock = threading.RLock()  # reentrant: a signal handler that records may interrupt a record
        self._closed = False
        self._dropped = 0
        self._taken = self._handled = 0  # events that were queued, and of those the ones that are sent, kept or dropped
        self._progress = threading.Condition()
        self._listener = None if listener is None else Listener(listener)
        journal = None if fallback is None else Journal(fallback, f"rank-{rank}.attempt-{attempt}")
        self._host = socket.gethostname()
        self._route = _Route(endpoint, journal)
        self._thread = threading.Thread(target=self._run, name=f"sparkdl-recorder-{rank}", daemon=True)
        if listener is None:
            self._thread.start()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Events lost for want of room in the queue or of anywhere to go."""
        return self._dropped

    def record(self, kind: str, /, *, clock: Clock | None = None, **payload: Any) -> None:
        """Record an event that happens now; never raises and never waits.

        Args:
            kind: what it is.
            clock: how far the run has come; copied.
            payload: JSON values; copied, so that lists and dicts may be changed afterwards.
        """
        self.put(kind, reading(clock), payload)

    def put(self, kind: str, clock: dict[str, int] | None, payload: dict[str, Any]) -> None:
        """Record an event as ``record`` does, from a clock read earlier and a payload that may have any names."""
        event = Event(kind, self.rank, self.attempt, time.time(), clock, plain(payload), self._host)
        with self._lock:
            if self._closed or len(self._waiting) >= self._capacity:
                self._dropped += 1
                return
            if self._listener is None:
                self._taken += 1
                self._waiting.append(event)
                if kind not in _PATIENT or len(self._waiting) == BURST_EVENTS:
                    self._bell.put(False)
        if self._listener is not None:
            self._listener(event)

    def settle(self, timeout: float) -> bool:
        """Wait until what was recorded so far is delivered, kept or dropped; whether it is, within so many seconds."""
        taken = self._taken
        self._bell.put(False)
        with self._progress:
            return self._progress.wait_for(lambda: self._handled >= taken, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, within ``timeout`` seconds, and join the thread; the rest goes to the fallback.

        If any were dropped the last event has kind ``"recorder"`` and the payload ``{"dropped": count}``. A driver
        that does not answer is waited for ``timeout`` and at most 3 seconds more. Later events are dropped; calling
        it again does nothing.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._listener is not None:
            return
        self._route.deadline = time.monotonic() + timeout
        self._bell.put(True)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._route.abort()
            self._thread.join(CONNECT_SECONDS)
        if self._thread.is_alive():  # in a name server or a file system that does not answer
            self._abandon()

    def _abandon(self) -> None:
        lost = 0
        with contextlib.suppress(IndexError):  # the thread may take some of them after all
            while True:
                self._waiting.popleft()
                lost += 1
        self._drop(lost)
        logger.warning("%s does not end; %d events that still waited for it are dropped", self._thread.name, lost)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count

    def _run(self) -> None:
        closed, linger, idle_at = False, LINGER_SECONDS, time.monotonic() + SECONDS
        while not closed or self._waiting:
            closed = self._rung(linger) or closed
            burst = self._take()
            linger = 0.0 if closed or self._waiting else LINGER_SECONDS  # one burst was too short for all of them
            if burst:
                idle_at = time.monotonic() + SECONDS
            elif time.monotonic() >= idle_at:
                self._route.idle()
            self._drop(len(burst) - self._route.deliver(burst))
            with self._progress:
                self._handled += len(burst)
                self._progress.notify_all()
        if self._dropped:
            said = {"dropped": self._dropped, "recorder": self.id}
            last = Event("recorder", self.rank, self.attempt, time.time(), None, said, self._host)
            self._route.deliver([last.to_json().encode()])
        self._drop(self._route.close())

    def _rung(self, linger: float) -> bool:
        """Wait until somebody waits for events, or for so many seconds; whether the recorder was closed."""
        closed = False
        with contextlib.suppress(queue.Empty):
            closed = self._bell.get(timeout=linger)
            while True:
                closed = self._bell.get_nowait() or closed
        return closed

    def _take(self) -> list[bytes]:
        """What waits, up to a burst."""
        burst: list[bytes] = []
        size = 0
        with contextlib.suppress(IndexError):
            while len(burst) < BURST_EVENTS and size < BURST_BYTES:
                burst.append(self._waiting.popleft().to_json().encode())
                size += len(burst[-1])
        return burst


class _Route:
    """Where a recorder's events go: the driver, else the file, else nowhere. Used by the recorder's thread."""

    def __init__(self, endpoint: Endpoint | None, fallback: Journal | None) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._connection: Connection | None = None
        self._warned = False
        self.deadline = float("inf")

    def deliver(self, burst: Sequence[bytes]) -> int:
        """Deliver the burst and return how many of its events went anywhere."""
        sent = 0
        connection = self._connected() if burst else None
        allowed = self._allowed(RECEIPT_SECONDS)  # read after connecting: what begins later than this, abort() ends
        if connection is not None and allowed > 0:
            sent = connection.send(burst, allowed)
            if sent < len(burst):
                self._disconnect()
        rest = burst[sent:]
        if not rest:
            return sent
        if self._endpoint is not None and not self._warned:
            self._warned = True
            place = "are dropped" if self._fallback is None else f"go to {self._fallback}"
            logger.warning("the driver at %s cannot be reached; events %s", self._endpoint, place)
        if self._fallback is None:
            return sent
        kept = self._fallback.append(rest)
        self._fallback.flush()
        return sent + kept

    def idle(self) -> None:
        """Nothing has come for a while: what was collected for the file is written."""
        if self._fallback is not None:
            self._fallback.flush(idle=True)

    def abort(self) -> None:
        """End an exchange with the driver that takes too long; called from another thread."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> int:
        """Close the connection and the file; how many events the file could not take after all."""
        self._disconnect()
        if self._fallback is None:
            return 0
        self._fallback.close()
        return self._fallback.lost

    def _allowed(self, seconds: float) -> float:
        return min(seconds, self.deadline - time.monotonic())

    def _connected(self) -> Connection | None:
        if self._connection is not None or self._endpoint is None:
            return self._connection
        retry_at, pause = _silent.get(self._endpoint, (0.0, 0.0))
        if time.monotonic() < retry_at:
            return None
        for address in self._endpoint.addresses:
            allowed = self._allowed(CONNECT_SECONDS)
            if allowed <= 0:
                return None
            try:
                self._connection = Connection.open(address, self._endpoint, allowed)
            except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
                logger.debug("no driver at %s: %s", address, error)
            else:
                _silent.pop(self._endpoint, None)
                return self._connection
        first, longest = RETRY_SECONDS
        pause = min(max(2 * pause, first), longest)
        _silent[self._endpoint] = time.monotonic() + pause, pause
        return None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def reading(clock: Clock | None) -> dict[str, int] | None:
    """Return ``clock.state_dict()``, at a tenth of its cost."""
    return None if clock is None else {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
