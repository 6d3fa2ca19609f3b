"""Bytes for tasks, such as weights: a broadcast, bytes inside a query, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sparkdl.io import files


class SharedValue(Protocol):
    """Bytes for tasks, which a classic session sends to each executor once."""

    @property
    def value(self) -> bytes:
        """In a task, the bytes."""

    def destroy(self) -> None:
        """Free the bytes on the executors and on the driver."""


SharedBytes = SharedValue | bytes
"""Bytes that travel with each task, or that Spark sends to each executor once (``Session.share``)."""


def shared(packed: SharedBytes) -> bytes:
    """In a task, the bytes."""
    return packed if isinstance(packed, bytes) else packed.value


@dataclass(frozen=True)
class InlineBytes:
    """Bytes inside a query."""

    value: bytes

    def destroy(self) -> None:
        """Nothing: they end with the query."""


@dataclass(frozen=True)
class SharedFile:
    """Bytes in a file that tasks can read."""

    path: str

    @property
    def value(self) -> bytes:
        """In a task, the bytes."""
        return files.read(self.path)

    def destroy(self) -> None:
        """Delete the file."""
        files.delete(self.path)
