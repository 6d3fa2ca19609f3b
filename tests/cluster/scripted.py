"""A cluster without processes, for tests of the supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl.cluster.protocol import Capacity


class Scripted:
    """A cluster whose gangs end in the given order: with an exception, a function's result, or a value.

    Attributes:
        begun: attempt and size of each gang.
    """

    def __init__(self, *endings: Any, size: int = 2, rooms: Sequence[int | Capacity | None] = (2,)) -> None:
        self.endings, self.size, self.rooms = list(endings), size, list(rooms)
        self.begun: list[tuple[int, int]] = []

    def capacity(self) -> Capacity:
        room = self.rooms.pop(0) if len(self.rooms) > 1 else self.rooms[0]
        return room if isinstance(room, Capacity) else Capacity(room, None)

    def gang(self, work, data=None, columns=None, *, listener=None, attempt=0, cancellation=None, size=None):
        self.begun.append((attempt, size))
        ending = self.endings.pop(0)
        if isinstance(ending, Exception):
            raise ending
        return ending(listener, attempt, cancellation) if callable(ending) else ending
