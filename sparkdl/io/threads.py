"""Background threads, and the number of PyTorch's threads."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

CAPACITY = 100_000  # items that may wait in a BackgroundQueue, by default
CLOSING = 60.0  # seconds that BackgroundQueue.close waits for its thread, by default
OBSERVING = 10.0  # seconds that an observer of a fit may delay its end: a listener, the progress bar, a written file

T = TypeVar("T")

logger = logging.getLogger(__name__)


def in_background(call: Callable[[], T], name: str) -> Future[T]:
    """Run ``call`` in a daemon thread called ``name``; the future's ``result()`` raises the call's exception."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # result() raises it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def observe(call: Callable[[], object], what: str) -> None:
    """Run ``call`` for at most ``OBSERVING`` seconds; if it fails or takes longer, warn that ``what`` does."""
    future = in_background(call, what)
    if not wait([future], OBSERVING).done:
        warn(f"{what} does not end within {OBSERVING:g} s")
    elif (error := future.exception()) is not None:
        warn(f"{what} failed: {type(error).__name__}: {error}")


def warn(message: str, error: BaseException | None = None) -> None:
    """Log a warning in a thread, with the traceback of an error: a handler may write to a stream that blocks."""
    wait([in_background(partial(logger.warning, message, exc_info=error), "sparkdl-warning")], 1.0)


class BackgroundQueue(Generic[T]):
    """A bounded queue whose items a thread passes to ``call``; if it is full, items are dropped and counted.

    The first item of a burst waits ``linger`` seconds for others. The thread calls ``end`` after the last item.
    ``close`` waits for the thread ``limit`` seconds at most, by default ``CLOSING``.
    """

    def __init__(
        self,
        call: Callable[[T], None],
        name: str,
        capacity: int = CAPACITY,
        *,
        linger: float = 0.0,
        end: Callable[[], None] | None = None,
        limit: float | None = None,
    ) -> None:
        self.lost, self._limit = 0, limit
        self._call, self._capacity, self._linger, self._end = call, capacity, linger, end
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._given_up = self._busy = self._failed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether an item waits or is being processed."""
        return self._busy or not self._queue.empty()

    def put(self, item: T) -> None:
        """Queue an item; if the queue is full or closed, drop the item."""
        if self._closed.is_set() or self._queue.qsize() >= self._capacity:
            self.lost += 1
            return
        self._queue.put(item)

    def close(self) -> None:
        """Process the waiting items for at most ``limit`` seconds; later items are dropped."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._queue.put(None)
        limit = CLOSING if self._limit is None else self._limit
        self._thread.join(limit)
        if self._thread.is_alive():
            self._given_up = True
            dropped = max(0, self._queue.qsize() - 1)  # without the end marker
            self.lost += dropped
            warn(f"{self._thread.name} does not end within {limit:g} s; {dropped} waiting items are dropped")

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._busy = True
            if self._linger and self._queue.empty():
                self._closed.wait(self._linger)
            try:
                if not self._given_up:
                    self._call(item)
            except Exception as error:  # the next items may be sound
                if not self._failed:
                    warn(f"{self._thread.name} failed, and will not tell of it again", error)
                self._failed = True
                self.lost += 1
            self._busy = False
        if self._end is not None:
            self._end()


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads inside the block; None keeps the present number."""
    import torch  # imported late: some processes with a background call do not load torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def watching(watch: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run ``watch(ended)`` in a daemon thread; the block's end sets ``ended`` and waits for the thread."""
    ended = threading.Event()
    thread = threading.Thread(target=watch, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
