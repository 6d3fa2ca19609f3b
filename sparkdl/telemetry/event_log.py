"""The driver's record of a run: all that is heard of it, shown at once and kept in ``runDir/events``.

    with Logbook(run.events, views=[Progress()]) as logbook:
        supervisor.gang(..., listener=logbook)

Views are called in the thread that hears, so they must be quick: members wait for it, and their signs of life with
them. The file is written in a thread of its own, from a queue that drops what it cannot hold; in bursts, so that a
driver that is killed loses up to a quarter of a second. What is slow, such as trackers, has an ``Aside`` as well.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from sparkdl.telemetry.channel import Event, Listener
from sparkdl.telemetry.event_file import DRIVER, Journal

__all__ = ["Aside", "Logbook"]

CAPACITY = 100_000
"""Events that may wait to be written, or for a slow view."""
LINGER = 0.25
"""Seconds that an event may wait for others before they are written: the file's thread then wakes once for all."""
CLOSING = 60.0
"""Seconds at most that the end of a run waits for a file system or a tracker that does not answer."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Logbook:
    """Listens to a run.

    Args:
        folder: where events are kept, a path or URI; None keeps none.
        views: called with every event, one call at a time; what one raises is logged once.
        capacity: events that may wait for the file.

    Attributes:
        received: events that were heard here.
        dropped: events that members say they have lost, and those that were heard and are not in the file.
    """

    def __init__(
        self,
        folder: str | None = None,
        views: Sequence[Callable[[Event], None]] = (),
        *,
        capacity: int = CAPACITY,
    ) -> None:
        self.received = 0
        self._lost_by: Counter[str] = Counter()  # by recorder
        self._lock = threading.RLock()
        self._views = [Listener(view) for view in views]
        self._file = None if folder is None else _File(folder, capacity)

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
                key = str(event.payload.get("recorder"))
                self._lost_by[key] = max(self._lost_by[key], int(event.payload.get("dropped", 0)))
            for view in self._views:
                view(event)
        if self._file is not None:
            self._file.put(event)

    def note(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Record something of this process."""
        now = time.time()
        self(Event(kind, -1, 0, now, None, dict(payload), os.uname().nodename, now))

    def close(self) -> None:
        """Write what waits; calling it again does nothing."""
        if self._file is not None:
            self._file.close()


class Aside(Generic[T]):
    """Calls a function in a thread of its own, with what comes; what it has no room for is dropped and counted.

    Args:
        call: must not raise.
        name: the thread's.
        capacity: how many may wait.
        linger: seconds that the first of several waits for the others.
        end: called in the thread in the end; must not raise.

    Attributes:
        lost: how many it was not called with.
    """

    def __init__(
        self,
        call: Callable[[T], None],
        name: str,
        capacity: int = CAPACITY,
        *,
        linger: float = 0.0,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.lost = 0
        self._call, self._capacity, self._linger, self._end = call, capacity, linger, end
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._given_up = self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something waits, or is being done."""
        return self._busy or not self._queue.empty()

    def put(self, item: T) -> None:
        """Call it with this, some time."""
        if self._closed.is_set() or self._queue.qsize() >= self._capacity:
            self.lost += 1
            return
        self._queue.put(item)

    def close(self) -> None:
        """Return when it was called with all that waits, or after ``CLOSING`` seconds; then nothing follows."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._queue.put(None)
        self._thread.join(CLOSING)
        if self._thread.is_alive():
            self._given_up = True
            left = max(0, self._queue.qsize() - 1)  # without the mark of the end
            self.lost += left
            logger.warning("%s does not end; %d still wait for it, and are left out", self._thread.name, left)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._busy = True
            if self._linger and self._queue.empty():
                self._closed.wait(self._linger)
            if not self._given_up:
                self._call(item)
            self._busy = False
        if self._end is not None:
            self._end()


class _File:
    """Writes events to a file of this process."""

    def __init__(self, folder: str, capacity: int) -> None:
        # The time first, so that names are in the order of the fits; and nobody else has the same.
        self._journal = Journal(folder, f"{DRIVER}{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}")
        self._refused = 0
        self._aside: Aside[Event] = Aside(
            self._write, "sparkdl-logbook", capacity, linger=LINGER, end=self._journal.close
        )

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
