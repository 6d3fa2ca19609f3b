"""Who watches a gang: asks its members for signs of life, and may end it from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.errors import SparkdlError


class Guard:
    """One gang's emergency brake; pulled from any thread, before the gang begins or while it runs.

    Args:
        heartbeat: seconds between two signs of life of a member; None for none.

    Attributes:
        heartbeat: the same.
        error: why the gang is ended, which is what it then raises; None as long as it is not. The first one counts.
    """

    def __init__(self, heartbeat: float | None = None) -> None:
        self.heartbeat = heartbeat
        self.error: SparkdlError | None = None
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None

    def end(self, error: SparkdlError) -> None:
        """End the gang, which will raise ``error``."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            if self._stop is not None:
                self._stop()  # within the lock: the block does not end, and no other gang begins, meanwhile

    def check(self) -> None:
        """Raise the reason if the gang has been ended, for a launcher that is still preparing it."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """The launcher's block in which ``stop()`` ends the gang; what the block then raises gives way to the reason.

        Args:
            stop: called at most once, from the thread of ``end``; it must not wait for the gang.
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
