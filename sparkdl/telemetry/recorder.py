"""A worker's recorder: a bounded queue, a thread that sends its events, and a fallback file.

Recording never raises into training and never waits: if the queue is full, the event is dropped and counted. Step and
span events wait up to half a second for others; events of other kinds are sent at once. A recorder numbers its events,
so the driver detects lost events by the gaps.

The driver sends a receipt for a connection's hello, and for events only on request: after the first heartbeat and in
``close``, so that events normally arrive before the worker's result. If the connection breaks, the recorder sends the
last events without a receipt again over another connection. If that fails, it writes them to the fallback file, else
drops and counts them. ``EventCounts`` travels with the worker's result.

A process that is killed, or ends without ``close``, loses its queue, uncounted. The fallback is flushed to the system,
not to the disk: it survives the process, not the host. Create a recorder in the worker's process: a forked child has
none installed.
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
from typing import Any

from sparkdl.data.clock import Clock
from sparkdl.net.protocol import Connection, Endpoint, ProtocolError, shut
from sparkdl.telemetry.channel import ASK
from sparkdl.telemetry.event import Event, SafeCallback, to_json_payload
from sparkdl.telemetry.event_file import SECONDS, EventFile, open_event_file

CONNECT_SECONDS = 3.0
"""Time that an address has to answer and prove itself, in seconds."""
RECEIPT_SECONDS = 30.0
"""Time that the driver has to take a burst of events or to answer, before the connection counts as broken."""
RETRY_SECONDS = (1.0, 30.0)
"""First and longest wait between two attempts to connect, in seconds."""
CAPACITY = 10_000
"""Events that may wait to be sent."""
BURST_EVENTS = 64
BURST_BYTES = 1 << 18
"""Limits of a burst, in events and bytes; the last ``BURST_EVENTS`` events are kept for another send."""
LINGER_SECONDS = 0.5
"""Seconds that a step or span event may wait for others, so that sending interrupts training once for all."""
_PATIENT = frozenset(("step", "span"))
_UNCOUNTED = "heartbeat"  # only the supervisor uses these, so they do not count as lost

logger = logging.getLogger(__name__)

# Drivers that did not answer: next attempt, by the monotonic clock, and the wait before it. All recorders of the
# process share it, since each of its tasks has its own recorder.
_unreachable: dict[Endpoint, tuple[float, float]] = {}


@dataclass
class EventCounts:
    """Counts of a recorder's events.

    Attributes:
        recorder: the recorder's id; empty without a recorder.
        last: number of its last event.
        kept: events in the fallback file; the driver may have some of them too.
        dropped: events lost because the queue was full or no destination was left.
        broken: whether a connection to the driver broke, so that sent events may be lost.
    """

    recorder: str = ""
    last: int = 0
    kept: int = 0
    dropped: int = 0
    broken: bool = False


class Recorder(contextlib.AbstractContextManager["Recorder"]):
    """Records a worker's events and sends them from its own thread.

    Args:
        endpoint: endpoint of the driver's channel; None uses the fallback or ``listener`` only.
        rank: the worker's rank in the gang.
        attempt: the gang's attempt, from 0.
        fallback: a folder, path or URI, for ``rank-<rank>.attempt-<attempt>.jsonl``, used if the driver is unreachable
            (see ``sparkdl.telemetry.event_file``); default: such events are dropped.
        listener: receives events directly, one call at a time, if the worker runs in the driver's process; it replaces
            ``endpoint``. Its first exception is logged; default: none.

    Attributes:
        counts: counts of the events; final after ``close``.
    """

    def __init__(
        self,
        endpoint: Endpoint | None,
        *,
        rank: int,
        attempt: int = 0,
        fallback: str | os.PathLike[str] | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.rank, self.attempt, self.counts = rank, attempt, EventCounts(uuid.uuid4().hex[:12])
        self._waiting: deque[Event] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()  # rings if an event is urgent; True: close
        self._lock = threading.RLock()  # reentrant: a signal handler that records may interrupt a record
        self._closed = False
        self._flushes: deque[threading.Event] = deque()  # set after the delivery of all earlier events
        self._listener = None if listener is None else SafeCallback(listener)
        self._host = socket.gethostname()
        file = None if fallback is None else open_event_file(fallback, f"rank-{rank}.attempt-{attempt}")
        self._route = _Route(endpoint, file, self.counts)
        self._thread = threading.Thread(target=self._run, name=f"sparkdl-recorder-{rank}", daemon=True)
        if listener is None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, kind: str, /, *, clock: Clock | None = None, **payload: Any) -> None:
        """Record an event that happens now, with copies of clock and payload (JSON values); never raises or waits."""
        now, values, counts = time.time(), to_json_payload(payload), self.counts
        at = None if clock is None else clock.state_dict()
        with self._lock:
            counts.last += kind != _UNCOUNTED and not self._closed
            if self._closed or (self._listener is None and len(self._waiting) >= CAPACITY):
                counts.dropped += 1
                return
            number = 0 if kind == _UNCOUNTED else counts.last
            event = Event(kind, self.rank, self.attempt, now, at, values, self._host, None, counts.recorder, number)
            if self._listener is None:
                self._waiting.append(event)
                if kind not in _PATIENT or len(self._waiting) == BURST_EVENTS:
                    self._bell.put(False)
        if self._listener is not None:
            self._listener(event)

    def flush(self, timeout: float) -> bool:
        """Wait until all events so far are delivered, kept or dropped; returns False after ``timeout`` seconds."""
        if self._listener is not None:
            return True
        delivered = threading.Event()
        self._flushes.append(delivered)
        self._bell.put(False)
        return delivered.wait(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send the queue within ``timeout`` seconds, and at most 3 more; other events go to the fallback.

        Later events are dropped; later calls do nothing.
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
        if self._thread.is_alive():  # a name server or file system does not answer
            lost = 0
            with contextlib.suppress(IndexError):  # the thread may still take some of them
                while True:
                    self._waiting.popleft()
                    lost += 1
            self._drop(lost)
            logger.warning("%s does not end, so its %d waiting events are dropped", self._thread.name, lost)

    def _drop(self, count: int) -> None:
        with self._lock:
            self.counts.dropped += count

    def _run(self) -> None:
        closed, linger, idle_at = False, LINGER_SECONDS, time.monotonic() + SECONDS
        while not closed or self._waiting:
            closed = self._rung(linger) or closed
            flushes = len(self._flushes)  # before the burst is taken, so that the burst has all their events
            burst = self._take()
            linger = 0.0 if closed or self._waiting else LINGER_SECONDS  # more than one burst waits
            if burst:
                idle_at = time.monotonic() + SECONDS
            elif time.monotonic() >= idle_at:
                self._route.idle()
            confirm = not self._waiting and (closed or flushes > 0)
            self._drop(self._route.deliver(burst, confirm=confirm))
            for _ in range(flushes if confirm else 0):
                self._flushes.popleft().set()
        self._drop(self._route.close())

    def _rung(self, linger: float) -> bool:
        closed = False
        with contextlib.suppress(queue.Empty):
            closed = self._bell.get(timeout=linger)
            while True:
                closed = self._bell.get_nowait() or closed
        return closed

    def _take(self) -> list[bytes]:
        burst: list[bytes] = []
        size = 0
        with contextlib.suppress(IndexError):
            while len(burst) < BURST_EVENTS and size < BURST_BYTES:
                burst.append(self._waiting.popleft().to_json().encode())
                size += len(burst[-1])
        return burst


class _Route:
    """Destination of a recorder's events: the driver, else the file, else none; used by the recorder's thread."""

    def __init__(self, endpoint: Endpoint | None, fallback: EventFile | None, counts: EventCounts) -> None:
        self._endpoint, self._fallback, self._counts = endpoint, fallback, counts
        self._connection: Connection | None = None
        self._unconfirmed: deque[bytes] = deque(maxlen=BURST_EVENTS)  # last sent events without a receipt
        self._warned = False
        self.deadline = float("inf")

    def deliver(self, burst: Sequence[bytes], *, confirm: bool = False) -> int:
        """Deliver the burst, with ``confirm`` wait for a receipt; returns how many events are certainly lost."""
        if not burst and not (confirm and self._unconfirmed):
            return 0
        lost = len(burst)  # the driver itself detects the loss of earlier events
        for _ in range(2):  # reconnect once
            if (connection := self._connect()) is None:
                break
            if self._send(connection, burst, confirm):
                return 0
            self._disconnect()
            self._counts.broken = True
            burst = [*self._unconfirmed, *burst]
            self._unconfirmed.clear()
        if self._endpoint is not None and not self._warned:
            self._warned = True
            place = "are dropped" if self._fallback is None else f"go to {self._fallback}"
            logger.warning("the driver at %s cannot be reached; events %s", self._endpoint, place)
        if self._fallback is None:
            return lost
        count = self._fallback.append(burst)
        self._fallback.flush()
        self._counts.kept += count
        return min(lost, len(burst) - count)

    def _send(self, connection: Connection, burst: Sequence[bytes], confirm: bool) -> bool:
        try:
            # Read the time after connecting; ``abort`` ends what begins after the deadline.
            deadline = time.monotonic() + self._allowed(RECEIPT_SECONDS)
            connection.send([*burst, ASK] if confirm else burst, deadline)
            if confirm:
                connection.receipt(deadline)
                self._unconfirmed.clear()
            else:
                self._unconfirmed.extend(burst)
        except (OSError, EOFError, ProtocolError) as error:
            logger.debug("the connection to the driver broke: %s", error)
            return False
        return True

    def idle(self) -> None:
        if self._fallback is not None:
            self._fallback.flush(idle=True)

    def abort(self) -> None:
        """Interrupt a slow call to the driver; called from another thread."""
        if (connection := self._connection) is not None:
            shut(connection.socket)

    def close(self) -> int:
        self._disconnect()
        if self._fallback is None:
            return 0
        self._fallback.close()
        self._counts.kept -= self._fallback.lost
        return self._fallback.lost

    def _allowed(self, seconds: float) -> float:
        return min(seconds, self.deadline - time.monotonic())

    def _connect(self) -> Connection | None:
        if self._connection is not None or self._endpoint is None:
            return self._connection
        retry_at, pause = _unreachable.get(self._endpoint, (0.0, 0.0))
        if time.monotonic() < retry_at:
            return None
        for address in self._endpoint.addresses:
            allowed = self._allowed(CONNECT_SECONDS)
            if allowed <= 0:
                return None
            try:
                self._connection = Connection.open(address, self._endpoint, allowed)
            except (OSError, ValueError) as error:  # ValueError: an invalid host name
                logger.debug("no driver at %s: %s", address, error)
            else:
                _unreachable.pop(self._endpoint, None)
                return self._connection
        first, longest = RETRY_SECONDS
        pause = min(max(2 * pause, first), longest)
        _unreachable[self._endpoint] = time.monotonic() + pause, pause
        return None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
