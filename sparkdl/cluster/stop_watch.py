"""Stopping a gang when the process is asked to stop: its members save, and end by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from sparkdl.cluster.cancellation import Guard
from sparkdl.cluster.shutdown import POLL, stop_requested, stopped
from sparkdl.errors import Fenced, InvalidInput, SparkdlError, Stopped


class StopWatch:
    """Watches for a request to stop (``sparkdl.cluster.shutdown``) while one attempt of a gang runs in the block.

    Args:
        guard: the gang's.
        ask: asks the members to save and to raise ``Stopped``, once, in a thread of its own; None if they cannot, and
            the gang is to be ended at once.
        waiting: whether the gang waits for slots: then there is nothing to save.
        limit: seconds that the members have, after which the gang is ended.

    Raises:
        Stopped: a stop was requested before the block; or in it, and the gang failed, of whatever, but for a user's
            mistake.
    """

    def __init__(
        self, guard: Guard, ask: Callable[[], None] | None, *, waiting: Callable[[], bool], limit: float
    ) -> None:
        self._guard, self._ask, self._waiting, self._limit = guard, ask, waiting, limit
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sparkdl-stop-watch", daemon=True)

    def __enter__(self) -> StopWatch:
        if stop_requested() is not None:
            raise stopped("had not begun")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        known = isinstance(error, (Stopped, InvalidInput, Fenced))
        if stop_requested() is not None and isinstance(error, SparkdlError) and not known:
            raise stopped(f"failed before it was saved: {error.message}") from error

    def _look(self) -> None:
        while stop_requested() is None:
            if self._over.wait(POLL):
                return
        if self._ask is None:
            self._end("was not saved: it keeps no checkpoints")
            return
        threading.Thread(target=self._call, args=(self._ask,), name="sparkdl-stop-ask", daemon=True).start()
        end = time.monotonic() + self._limit
        while not self._over.wait(POLL):
            if self._waiting():
                self._end("had not begun")
                return
            if time.monotonic() > end:
                self._end(f"could not be saved within {self._limit:g} s")
                return

    def _call(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except (OSError, SparkdlError) as error:
            self._end(f"could not be told to save: {error}")

    def _end(self, what: str) -> None:
        self._guard.end(stopped(what))
