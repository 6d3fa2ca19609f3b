"""A call beside whatever comes next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


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

    Thread(target=run, name=name, daemon=True).start()
    return future
