"""Bytes for tasks, such as weights: a broadcast, bytes inside a query, or a file."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import Protocol

from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.io.redaction import public

logger = logging.getLogger(__name__)


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
        """In a task, the bytes; raises InvalidInput if this host does not see the file."""
        try:
            return files.read(self.path)
        except FileNotFoundError as error:
            raise InvalidInput(
                f"the executor on {socket.gethostname()} does not see {public(self.path)}; expected a runDir that this "
                "process and the executors share, such as s3://bucket/run or a mounted folder."
            ) from error

    def destroy(self) -> None:
        """Delete the file; a failure is a warning, since what it was for is done."""
        try:
            files.delete(self.path)
        except (OSError, InvalidInput) as error:
            logger.warning("the file %s could not be deleted: %s", public(self.path), error)
