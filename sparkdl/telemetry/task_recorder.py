"""How a task that is no member of a gang tells of itself: a recorder of its own, for as long as it runs.

A task that is over must not wait for a driver that does not answer. So it waits for a moment only; and a process in
which one task has found the driver silent does not ask again for a while (``sparkdl.telemetry.recorder``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sparkdl.telemetry.emit import recording, span
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import forwarding
from sparkdl.telemetry.protocol import Endpoint
from sparkdl.telemetry.recorder import Recorder, Told
from sparkdl.telemetry.step_timer import Laps, flush, measuring

__all__ = ["Reporting"]

_LEAVING = 0.5  # seconds that a task waits for what it has told to be heard


@dataclass(frozen=True)
class Reporting:
    """Where tasks send events; with neither endpoint nor fallback they measure nothing.

    Attributes:
        endpoint: of the driver's channel; None for none.
        fallback: the folder for events that cannot be sent; None to drop them.
        number: of the round; None outside of rounds.
        level: of log records that are sent; None for none.
        listener: called with events directly, where tasks run in the driver's process.
    """

    endpoint: Endpoint | None = None
    fallback: str | None = field(default=None, repr=False)
    number: int | None = None
    level: int | None = None
    listener: Callable[[Event], None] | None = None

    @contextmanager
    def task(self, name: str, index: int, attempt: int = 0) -> Iterator[Told]:
        """A block in which a task records; gives what has become of that, which is known when the block is over.

        Args:
            name: what it does.
            index: what its events have as their rank: of the part, or of an ensemble's member.
            attempt: how often it was tried before.
        """
        if self.endpoint is None and self.fallback is None and self.listener is None:
            yield Told()
            return
        recorder = Recorder(self.endpoint, rank=index, attempt=attempt, fallback=self.fallback, listener=self.listener)
        level = None if self.listener is not None else self.level
        about: dict[str, Any] = {} if self.number is None else {"round": self.number}
        try:
            with recording(recorder), forwarding(level), span(name, **about), measuring(Laps()):
                yield recorder.told
                flush()
        finally:
            recorder.close(_LEAVING)
