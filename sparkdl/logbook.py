"""The driver's record of a run: all that is heard of it, shown at once and kept in ``runDir/events``.

    with Logbook(run.events, views=[Progress()]) as logbook:
        supervisor.gang(..., listener=logbook)

Views are called in the thread that hears, so they must be quick: members wait for it, and their signs of life with
them. The file is written, and ``slow`` views such as trackers are called, in threads of their own, from queues that
drop what they cannot hold.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType

from sparkdl.channel import Event, Listener
from sparkdl.journal import Journal

__all__ = ["Logbook"]

CAPACITY = 100_000
"""Events that may wait to be written, or for a slow view."""
CLOSING = 60.0
"""Seconds at most that the end of a run waits for a file system or a tracker that does not answer."""

logger = logging.getLogger(__name__)


class Logbook:
    """Listens to a run.

    Args:
        folder: where events are kept, a path or URI; None keeps none.
        views: called with every event, one call at a time; what one raises is logged once.
        slow: the same, in a thread of its own each.
        capacity: events that may wait for the file, or for a slow view.

    Attributes:
        received: events that were heard here.
        dropped: events that members say they have lost, and those that were heard and are not in the file.
    """

    def __init__(
        self,
        folder: str | None = None,
        views: Sequence[Callable[[Event], None]] = (),
        *,
        slow: Sequence[Callable[[Event], None]] = (),
        capacity: int = CAPACITY,
    ) -> None:
        self.received = 0
        self._lost_by: Counter[tuple[int, int]] = Counter()
        self._lock = threading.RLock()
        self._views = [Listener(view) for view in views]
        self._file = None if folder is None else _File(folder, capacity)
        self._asides = [Aside(Listener(view), f"sparkdl-view-{type(view).__name__}", capacity) for view in slow]

    def __enter__(self) -> Logbook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def keeps(self) -> bool:
        """Whether events are kept in a file."""
        return self._file is not None

    @property
    def dropped(self) -> int:
        """See the class."""
        return sum(self._lost_by.values()) + (0 if self._file is None else self._file.lost)

    def __call__(self, event: Event) -> None:
        """Take an event: of a member, or of this process, whose events have rank -1."""
        with self._lock:
            self.received += 1
            if event.kind in ("recorder", "outcome"):  # which tell the same; the first may have been lost as well
                key = event.attempt, event.rank
                self._lost_by[key] = max(self._lost_by[key], int(event.payload.get("dropped", 0)))
            for view in self._views:
                view(event)
        if self._file is not None:
            self._file.put(event)
        for aside in self._asides:
            aside.put(event)

    def note(self, kind: str, *, attempt: int = 0, **payload: object) -> None:
        """Record something of this process."""
        now = time.time()
        self(Event(kind, -1, attempt, now, None, payload, os.uname().nodename, now))

    def close(self) -> None:
        """Write what waits, and let the slow views come to their end; calling it again does nothing."""
        for aside in self._asides:
            aside.close()
        if self._file is not None:
            self._file.close()


class Aside:
    """Calls a function in a thread of its own, with what comes; what it has no room for is dropped and counted.

    Args:
        call: must not raise.
        name: the thread's.
        capacity: events that may wait.
        end: called in the thread in the end; must not raise.

    Attributes:
        lost: events that it was not called with.
    """

    def __init__(
        self,
        call: Callable[[Event], None],
        name: str,
        capacity: int = CAPACITY,
        *,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.lost = 0
        self._call, self._capacity, self._end = call, capacity, end
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Call it with this event, some time."""
        if self._closed or self._queue.qsize() >= self._capacity:
            self.lost += 1
            return
        self._queue.put(event)

    def close(self) -> None:
        """Return when it was called with all that waits, or after ``CLOSING`` seconds."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join(CLOSING)
        if self._thread.is_alive():
            self.lost += self._queue.qsize()
            logger.warning("%s does not end; %d events still wait for it", self._thread.name, self._queue.qsize())

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            self._call(event)
        if self._end is not None:
            self._end()


class _File:
    """Writes events to a file of this process."""

    def __init__(self, folder: str, capacity: int) -> None:
        # The time first, so that names are in the order of the fits; and nobody else has the same.
        self._journal = Journal(folder, f"driver-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}")
        self._refused = 0
        self._aside = Aside(self._write, "sparkdl-logbook", capacity, end=self._journal.close)

    @property
    def lost(self) -> int:
        """Events that are not in the file."""
        return self._aside.lost + self._refused + self._journal.lost

    def put(self, event: Event) -> None:
        """Write it, some time."""
        self._aside.put(event)

    def close(self) -> None:
        """Write what waits."""
        self._aside.close()

    def _write(self, event: Event) -> None:
        self._refused += 1 - self._journal.append([event.to_json().encode()])
        self._journal.flush()
