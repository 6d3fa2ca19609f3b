"""Cancellation of a gang from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.errors import SparkdlError


class CancellationToken:
    """Thread-safe cancellation token of one gang, usable before the gang starts and while it runs.

    Attributes:
        heartbeat: seconds between a worker's heartbeats; None for no heartbeats.
        error: the reason, which the gang raises; None while the gang is not cancelled. Later reasons are ignored.
    """

    def __init__(self, heartbeat: float | None = None) -> None:
        self.heartbeat = heartbeat
        self.error: SparkdlError | None = None
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None

    def end(self, error: SparkdlError) -> None:
        """Cancel the gang, which raises ``error``."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            if self._stop is not None:
                self._stop()  # under the lock, so that the block cannot end meanwhile

    def check(self) -> None:
        """Raise the reason if the gang is cancelled; for a launcher that still prepares the gang."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let ``stop()`` cancel the gang within the block, which then raises the reason in place of its own exception.

        The thread of ``end`` calls ``stop`` at most once; ``stop`` must not wait for the gang.
        """
        with self._lock:
            self._stop, late = stop, self.error
        try:
            if late is not None:
                raise late
            yield
        except Exception as consequence:
            if self.error is None or consequence is self.error:
                raise
            raise self.error from consequence
        finally:
            with self._lock:
                self._stop = None
