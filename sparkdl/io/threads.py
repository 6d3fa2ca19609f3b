"""Calls in threads of their own, and how many threads PyTorch has."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

CAPACITY = 100_000
"""Items that may wait for a slow call."""
CLOSING = 60.0
"""Seconds at most that ``Aside.close`` waits for a call that does not return."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


def in_background(call: Callable[[], T], name: str) -> Future[T]:
    """Begin a call in a thread of its own, which does not keep the process alive as an executor's would.

    Args:
        call: what to call.
        name: the thread's.

    Returns:
        Its result; what it raises, ``result()`` raises.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # result() raises it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Aside(Generic[T]):
    """Calls a function in a thread of its own, with what comes; what it has no room for is dropped and counted.

    Args:
        call: must not raise.
        name: the thread's.
        capacity: how many may wait.
        linger: seconds that the first of several waits for the others.
        end: called in the thread in the end; must not raise.

    Attributes:
        lost: how many it was not called with.
    """

    def __init__(
        self,
        call: Callable[[T], None],
        name: str,
        capacity: int = CAPACITY,
        *,
        linger: float = 0.0,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.lost = 0
        self._call, self._capacity, self._linger, self._end = call, capacity, linger, end
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._given_up = self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something waits, or is being done."""
        return self._busy or not self._queue.empty()

    def put(self, item: T) -> None:
        """Call it with this, some time."""
        if self._closed.is_set() or self._queue.qsize() >= self._capacity:
            self.lost += 1
            return
        self._queue.put(item)

    def close(self) -> None:
        """Return when it was called with all that waits, or after ``CLOSING`` seconds; then nothing follows."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._queue.put(None)
        self._thread.join(CLOSING)
        if self._thread.is_alive():
            self._given_up = True
            left = max(0, self._queue.qsize() - 1)  # without the mark of the end
            self.lost += left
            logger.warning("%s does not end; %d still wait for it, and are left out", self._thread.name, left)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._busy = True
            if self._linger and self._queue.empty():
                self._closed.wait(self._linger)
            if not self._given_up:
                self._call(item)
            self._busy = False
        if self._end is not None:
            self._end()


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch compute with so many threads in the block; with None, with as many as before."""
    import torch  # which not every process with a background call has loaded

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
