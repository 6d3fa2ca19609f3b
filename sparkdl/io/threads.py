"""Background threads, and the number of PyTorch's threads."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

CAPACITY = 100_000  # items that may wait in a BackgroundQueue, by default
CLOSING = 60.0  # seconds that BackgroundQueue.close waits for its thread, at most

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


class BackgroundQueue(Generic[T]):
    """A bounded queue whose items a thread passes to ``call``; if it is full, items are dropped and counted.

    The first item of a burst waits ``linger`` seconds for others. The thread calls ``end`` after the last item.
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
        """Whether an item waits or is being processed."""
        return self._busy or not self._queue.empty()

    def put(self, item: T) -> None:
        """Queue an item; if the queue is full or closed, drop the item."""
        if self._closed.is_set() or self._queue.qsize() >= self._capacity:
            self.lost += 1
            return
        self._queue.put(item)

    def close(self) -> None:
        """Process the waiting items for at most ``CLOSING`` seconds; later items are dropped."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._queue.put(None)
        self._thread.join(CLOSING)
        if self._thread.is_alive():
            self._given_up = True
            dropped = max(0, self._queue.qsize() - 1)  # without the end marker
            self.lost += dropped
            name = self._thread.name
            logger.warning("thread %s did not end within %g s; %d waiting items are dropped", name, CLOSING, dropped)

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
