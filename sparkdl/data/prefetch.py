"""Prefetching of items in one thread, and of their copies to a GPU while it computes.

    the prefetch thread    gathers rows into pinned memory, and starts their copy on a copy stream
    the consumer           its stream waits for the copy's event, the CPU does not

With ``depth`` 2 one batch, or chunk of batches, is computed while the next ones are copied: double buffering.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

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
                try:
                    raise item
                finally:
                    del item  # with it, the error would hold this frame, and so the consumer's tensors
            yield item[0]
    finally:
        stopped.set()
        thread.join()


def prefetch_to(
    device: torch.device, items: Iterable[T], tensors_of: Callable[[T], Iterable[Tensor]], *, depth: int = 2
) -> Iterator[T]:
    """Iterate as ``prefetch`` over items with tensors on ``device``, which ``tensors_of`` gives.

    On GPUs the prefetch thread makes an item, and so copies its rows, on a copy stream. When the item is yielded,
    the consumer's current stream waits for the copies.
    """
    if device.type != "cuda":
        yield from prefetch(items, depth=depth)
        return
    for item, copied in prefetch(_on_copy_stream(items, device), depth=depth):
        stream = torch.cuda.current_stream(device)
        stream.wait_event(copied)
        for tensor in tensors_of(item):
            # The memory belongs to the copy stream, which would reuse it before this stream's kernels have read it.
            tensor.record_stream(stream)
        yield item


def _on_copy_stream(items: Iterable[T], device: torch.device) -> Iterator[tuple[T, torch.cuda.Event]]:
    torch.cuda.set_device(device)  # a new thread begins on GPU 0
    stream, remaining = _copy_stream(device), iter(items)
    while True:
        with torch.cuda.stream(stream):  # of this thread, and only while an item is made
            try:
                item = next(remaining)
            except StopIteration:
                return
            copied = stream.record_event()
        yield item, copied


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """A device's stream for copies; the allocator keeps memory for each stream, so one serves all epochs."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
