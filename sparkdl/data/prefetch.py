"""Prefetching of items in one thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_POLL = 0.1  # seconds between a blocked producer's checks for the consumer's end


def prefetch(items: Iterable[T], *, depth: int = 2) -> Iterator[T]:
    """Iterate over ``items`` with up to ``depth`` ready ahead of time, and one more in production.

    The producer's error is raised at its item's place. If the consumer stops early, the thread ends before the
    generator's ``close()`` returns.
    """
    ready: queue.Queue[tuple[T] | BaseException] = queue.Queue(maxsize=depth)
    stopped = threading.Event()
    thread = threading.Thread(target=_produce, args=(items, ready, stopped), name="sparkdl-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()
        thread.join()


def _produce(items: Iterable[T], ready: queue.Queue[tuple[T] | BaseException], stopped: threading.Event) -> None:
    try:
        for item in items:
            if not _put((item,), ready, stopped):
                return
        _put(StopIteration(), ready, stopped)
    except BaseException as error:  # the consumer raises it
        _put(error, ready, stopped)


def _put(item: T, ready: queue.Queue[T], stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            ready.put(item, timeout=_POLL)
        except queue.Full:
            continue
        return True
    return False
