"""The driver's record of a run: all that is heard of it, shown at once and kept in ``runDir/events``.

    with Logbook(run.events, views=[Progress()]) as logbook:
        supervisor.gang(..., listener=logbook)

Views are called in the thread that hears, so they must be quick: members wait for it, and their signs of life with
them. The file is written in a thread of its own, from a queue that drops what it cannot hold; in bursts, so that a
driver that is killed loses up to a quarter of a second. What is slow, such as trackers, has an ``Aside`` as well.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from sparkdl.io.threads import CAPACITY, Aside
from sparkdl.telemetry.channel import Event, Listener
from sparkdl.telemetry.event_file import DRIVER, Journal

LINGER = 0.25
"""Seconds that an event may wait for others before they are written: the file's thread then wakes once for all."""


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
