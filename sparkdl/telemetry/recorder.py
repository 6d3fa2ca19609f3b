"""A worker's recorder: a bounded queue, a thread that empties it, and a file for events that the driver cannot take.

A recorder numbers its events, so that the driver sees by the gaps what was lost. It promises never to raise into
training and never to wait: a full queue drops the event and counts it. Events of steps and spans are sent with the
next one of another kind, or within half a second; others at once.

The driver acknowledges the hello of a connection, and no event unless it is asked. A worker asks once, after its first
heartbeat, and ``close`` asks, so that an orderly worker's events come before its result. If the connection breaks, the
last events that no receipt covers are sent again over another connection, else go to the fallback file, else are
dropped and counted. ``Told`` travels with the worker's result and says how many events the driver should have.

A process that is killed, or ends without ``close``, takes its queue with it, uncounted. The fallback is flushed to the
system, not to the disk: it outlives the process, not the host. Times are of the worker's own clock, and hosts
disagree. A recorder belongs to the process that made it: make it in the worker; in a forked child none is installed.
"""

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
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.channel import ASK
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import reading
from sparkdl.telemetry.event import Event, Listener, plain
from sparkdl.telemetry.event_file import SECONDS, Journal
from sparkdl.telemetry.protocol import Connection, Endpoint, ProtocolError

__all__ = ["Recorder", "Told"]

CONNECT_SECONDS = 3.0
"""What one address has to answer and prove itself."""
RECEIPT_SECONDS = 30.0
"""What the driver has to take a burst of events, or to answer, before the connection counts as broken."""
RETRY_SECONDS = (1.0, 30.0)
"""The first and the longest wait between two attempts to connect."""
BURST_EVENTS = 64
BURST_BYTES = 1 << 18
"""A burst is cut at so many events or bytes; so many events are kept to be sent again."""
LINGER_SECONDS = 0.5
"""What an event that nobody waits for may wait for others, so that training is interrupted once for all of them."""
_PATIENT = frozenset(("step", "span"))
_UNCOUNTED = "heartbeat"  # the supervisor alone takes these, so the count of lost events cannot miss one

logger = logging.getLogger(__name__)

# Of drivers that did not answer: when to ask again, by the monotonic clock, and the wait before that. It is for the
# process and not for one recorder, since a process has as many as tasks run in it one after the other.
_silent: dict[Endpoint, tuple[float, float]] = {}


@dataclass
class Told:
    """What has become of a recorder's events.

    Attributes:
        recorder: the recorder's id; empty where there was none.
        last: the number of its last event.
        kept: events that went to the fallback file; some of them the driver may have as well.
        dropped: events lost for want of room in the queue or of anywhere to go.
        broken: whether a connection to the driver broke, so that events may be lost on the way.
    """

    recorder: str = ""
    last: int = 0
    kept: int = 0
    dropped: int = 0
    broken: bool = False


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

    Attributes:
        told: what has become of the events; final once ``close`` has returned.

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
        self.rank, self.attempt, self.told = rank, attempt, Told(uuid.uuid4().hex[:12])
        self._capacity = capacity
        self._waiting: deque[Event] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()  # rings when somebody waits, with True at the end
        self._lock = threading.RLock()  # reentrant: a signal handler that records may interrupt a record
        self._closed = False
        self._asked: deque[threading.Event] = deque()  # by ``settle``; set once the driver has what was recorded before
        self._listener = None if listener is None else Listener(listener)
        journal = None if fallback is None else Journal(fallback, f"rank-{rank}.attempt-{attempt}")
        self._host = socket.gethostname()
        self._route = _Route(endpoint, journal, self.told)
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
        return self.told.dropped

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
        now, copied, told = time.time(), plain(payload), self.told
        with self._lock:
            if self._closed:
                told.dropped += 1
                return
            told.last += kind != _UNCOUNTED
            number = 0 if kind == _UNCOUNTED else told.last
            event = Event(
                kind, self.rank, self.attempt, now, clock, copied, self._host, recorder=told.recorder, number=number
            )
            if self._listener is None and len(self._waiting) >= self._capacity:
                told.dropped += 1
                return
            if self._listener is None:
                self._waiting.append(event)
                if kind not in _PATIENT or len(self._waiting) == BURST_EVENTS:
                    self._bell.put(False)
        if self._listener is not None:
            self._listener(event)

    def settle(self, timeout: float) -> bool:
        """Wait until what was recorded so far is delivered, kept or dropped; whether it is, within so many seconds."""
        if self._listener is not None:
            return True
        asked = threading.Event()
        self._asked.append(asked)
        self._bell.put(False)
        return asked.wait(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, within ``timeout`` seconds, and join the thread; the rest goes to the fallback.

        A driver that does not answer is waited for ``timeout`` and at most 3 seconds more. Later events are dropped;
        calling it again does nothing.
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
            self.told.dropped += count

    def _run(self) -> None:
        closed, linger, idle_at = False, LINGER_SECONDS, time.monotonic() + SECONDS
        asked: list[threading.Event] = []
        while not closed or self._waiting:
            closed = self._rung(linger) or closed
            while self._asked:  # before the burst is taken, which then has all that they wait for
                asked.append(self._asked.popleft())
            burst = self._take()
            linger = 0.0 if closed or self._waiting else LINGER_SECONDS  # one burst was too short for all of them
            if burst:
                idle_at = time.monotonic() + SECONDS
            elif time.monotonic() >= idle_at:
                self._route.idle()
            ask = not self._waiting and (closed or bool(asked))
            self._drop(self._route.deliver(burst, ask=ask))
            while ask and asked:
                asked.pop().set()
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

    def __init__(self, endpoint: Endpoint | None, fallback: Journal | None, told: Told) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._told = told
        self._connection: Connection | None = None
        self._unsure: deque[bytes] = deque(maxlen=BURST_EVENTS)  # the last that were sent, and that no receipt covers
        self._warned = False
        self.deadline = float("inf")

    def deliver(self, burst: Sequence[bytes], *, ask: bool = False) -> int:
        """Deliver the burst, and with ``ask`` wait for a receipt; how many events are known to have gone nowhere."""
        if not burst and not (ask and self._unsure):
            return 0
        lost = len(burst)  # of those sent before, the driver sees what is missing
        for _ in range(2):  # a connection that breaks is made anew once
            connection = self._connected()
            if connection is None:
                break
            if self._sent(connection, burst, ask):
                return 0
            self._disconnect()
            self._told.broken = True
            burst = [*self._unsure, *burst]
            self._unsure.clear()
        if self._endpoint is not None and not self._warned:
            self._warned = True
            place = "are dropped" if self._fallback is None else f"go to {self._fallback}"
            logger.warning("the driver at %s cannot be reached; events %s", self._endpoint, place)
        if self._fallback is None:
            return lost
        kept = self._fallback.append(burst)
        self._fallback.flush()
        self._told.kept += kept
        return min(lost, len(burst) - kept)

    def _sent(self, connection: Connection, burst: Sequence[bytes], ask: bool) -> bool:
        try:
            # The time is read after connecting: what begins later than the deadline, ``abort`` ends.
            deadline = time.monotonic() + self._allowed(RECEIPT_SECONDS)
            connection.send([*burst, ASK] if ask else burst, deadline)
            if ask:
                connection.receipt(deadline)
                self._unsure.clear()
            else:
                self._unsure.extend(burst)
        except (OSError, EOFError, ProtocolError) as error:
            logger.debug("the connection to the driver broke: %s", error)
            return False
        return True

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
        self._told.kept -= self._fallback.lost
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
