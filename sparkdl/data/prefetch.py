"""Prefetching of items in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], *, depth: int = 2) -> Iterator[T]:
    """Iterate over ``items`` with up to ``depth`` ready ahead of time, and one more in production.

    The producer's error is raised at its item's place. If the consumer stops early, the thread ends before the
    generator's ``close()`` returns.
    """
    boxes = ((item,) for item in items)  # None follows the last one
    thread = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-prefetch")
    try:
        ahead = deque(thread.submit(next, boxes, None) for _ in range(depth + 1))
        while (box := ahead.popleft().result()) is not None:
            ahead.append(thread.submit(next, boxes, None))
            yield box[0]
    finally:
        thread.shutdown(cancel_futures=True)
