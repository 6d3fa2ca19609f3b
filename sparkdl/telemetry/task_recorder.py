"""Recording in a task that is not a worker of a gang: one recorder per task.

A finished task must not wait for a driver that does not answer, so it waits half a second only. After a task found the
driver silent, its process pauses before it connects again (``sparkdl.telemetry.recorder``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sparkdl.net.protocol import Endpoint
from sparkdl.telemetry.emit import recording, span
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import forwarding
from sparkdl.telemetry.recorder import EventCounts, Recorder
from sparkdl.telemetry.step_timer import StepTimer, flush, measuring

_LEAVING = 0.5  # seconds that a task waits for the delivery of its events


@dataclass(frozen=True)
class Reporting:
    """Destination of tasks' events; without endpoint, fallback and listener, tasks measure nothing.

    Attributes:
        endpoint: endpoint of the driver's channel; default: none.
        fallback: folder for events that cannot be sent; default: they are dropped.
        number: the round; None outside rounds.
        level: lowest level of forwarded log records; default: none are forwarded.
        listener: receives events directly, if tasks run in the driver's process.
    """

    endpoint: Endpoint | None = None
    fallback: str | None = field(default=None, repr=False)
    number: int | None = None
    level: int | None = None
    listener: Callable[[Event], None] | None = None

    @contextmanager
    def task(self, name: str, index: int, attempt: int = 0) -> Iterator[EventCounts]:
        """Context of the task ``name`` with this rank and attempt; yields its event counts, final after the block."""
        if self.endpoint is None and self.fallback is None and self.listener is None:
            yield EventCounts()
            return
        recorder = Recorder(self.endpoint, rank=index, attempt=attempt, fallback=self.fallback, listener=self.listener)
        level = None if self.listener is not None else self.level
        fields: dict[str, Any] = {} if self.number is None else {"round": self.number}
        try:
            with recording(recorder), forwarding(level), span(name, **fields), measuring(StepTimer()):
                yield recorder.counts
                flush()
        finally:
            recorder.close(_LEAVING)
