"""The driver's record of a run: received events are shown at once and kept in ``runDir/events``.

    with EventLog(run.events, views=[Progress()]) as event_log:
        supervisor.gang(..., listener=event_log)

Views run in the receiving thread and must be quick: workers and their heartbeats wait for them. Slow views, such as
trackers, use a ``BackgroundQueue``, as the file does. A driver that is killed loses up to a quarter of a second of
events.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sparkdl.io.threads import CAPACITY, BackgroundQueue
from sparkdl.telemetry.event import Event, SafeCallback
from sparkdl.telemetry.event_file import DRIVER, open_event_file

LINGER = 0.25
"""Seconds that an event may wait for others before the file is written, so that the thread wakes once for all."""


class EventLog(AbstractContextManager["EventLog"]):
    """Listens to a run.

    Args:
        folder: folder of the event files, a path or URI; default: events are not kept.
        views: functions that receive every event, one call at a time; the first exception of each is logged.
        capacity: events that may wait for the file.

    Attributes:
        received: number of received events.
    """

    def __init__(
        self, folder: str | None = None, views: Sequence[Callable[[Event], None]] = (), *, capacity: int = CAPACITY
    ) -> None:
        self.folder = folder
        self.received = 0
        self._recorders: defaultdict[str, _Received] = defaultdict(_Received)  # by the recorder's id
        self._lock = threading.RLock()
        self._views = [SafeCallback(view) for view in views]
        self._unwritten = 0
        if folder is not None:
            # The time comes first, so that names sort in the order of the fits; the random part makes them unique.
            name = f"{DRIVER}{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
            self._file = open_event_file(folder, name)
            self._queue = BackgroundQueue(
                self._write, "writing the events", capacity, linger=LINGER, end=self._file.close
            )

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Events that never arrived, by their numbers and by workers' results, or are missing in the file."""
        with self._lock:
            lost = sum(events.lost for events in self._recorders.values())
        return lost if self.folder is None else lost + self._queue.lost + self._unwritten + self._file.lost

    @property
    def dropped_at_least(self) -> bool:
        """Whether ``dropped`` is a lower bound: a worker, for example one that died, reported no event count."""
        with self._lock:
            return any(events.working for events in self._recorders.values())

    def __call__(self, event: Event) -> None:
        """Take an event of a worker, or of this process with rank -1."""
        with self._lock:
            self.received += 1
            if event.number:
                self._recorders[event.recorder].count_event(event)
            elif event.kind == "outcome" and event.payload.get("recorder"):
                self._recorders[event.payload["recorder"]].end(event.payload)
            for view in self._views:
                view(event)
        if self.folder is not None:
            self._queue.put(event)

    def note(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Record an event of this process."""
        now = time.time()
        self(Event(kind, -1, 0, now, None, dict(payload), os.uname().nodename, now))

    def close(self) -> None:
        """Write the waiting events; later calls do nothing."""
        if self.folder is not None:
            self._queue.close()

    def _write(self, event: Event) -> None:
        self._unwritten += 1 - self._file.append([event.to_json().encode()])
        self._file.flush()


@dataclass
class _Received:
    count: int = 0
    last: int = 0
    kept: int = 0
    dropped: int = 0
    working: bool = False

    @property
    def lost(self) -> int:
        """Events that neither the driver nor the worker's file has."""
        return max(self.last - self.count - self.kept, self.dropped)

    def count_event(self, event: Event) -> None:
        self.count += 1
        self.last = max(self.last, event.number)
        self.working |= event.kind == "started"

    def end(self, counts: Mapping[str, Any]) -> None:
        self.last, self.kept, self.dropped = max(self.last, counts["last"]), counts["kept"], counts["dropped"]
        self.working = False
