"""Recording of events on the workers, through one current recorder per process.

    with Recorder(endpoint, rank=rank) as recorder, recording(recorder):
        with span("forward", clock=clock):
            ...
        record("loss", clock=clock, value=0.25)

``sparkdl.telemetry.recorder`` lists the guarantees of recording. ``sparkdl.net.protocol`` lists the guarantees of the
connection.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from sparkdl.data.clock import Clock

PROCESS = uuid.uuid4().hex
"""Id of this process, in the warnings that it records."""


class Sink(Protocol):
    """A ``Recorder``, whose file every recording file would else load."""

    def record(self, kind: str, /, *, clock: Clock | None = None, **payload: Any) -> None:
        """Record an event that happens now; never raises or waits."""


_current: Sink | None = None


def _install(recorder: Sink | None) -> Sink | None:
    global _current  # a context variable would not reach the prefetch threads
    previous, _current = _current, recorder
    return previous


# A forked child, such as a loader's worker, inherits the recorder without the thread that empties its queue.
os.register_at_fork(after_in_child=lambda: _install(None))


@contextlib.contextmanager
def recording(recorder: Sink | None) -> Iterator[None]:
    """Make ``recorder`` the current recorder of all threads of this process, then restore the previous one.

    None switches recording off. The block's end does not close the recorder.
    """
    previous = _install(recorder)
    try:
        yield
    finally:
        _install(previous)


def record(kind: str, /, *, clock: Clock | None = None, **payload: Any) -> None:
    """Record an event with the current recorder, as ``Recorder.record`` does; without a recorder do nothing."""
    if (recorder := _current) is not None:
        recorder.record(kind, clock=clock, **payload)


def notify(message: str) -> None:
    """Warn the user here and, through ``sparkdl.telemetry.log_forwarding.pass_on``, on the driver."""
    record("warning", message=message, process=PROCESS)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def span(name: str, /, *, clock: Clock | None = None, **payload: Any) -> Iterator[None]:
    """Record the duration of a block or decorated function; without a current recorder do nothing.

    The event has kind ``"span"`` and the clock of the block's start. Its payload has ``name``, ``start`` (unix
    seconds), ``seconds`` (of the performance counter) and the given values. It also has ``thread`` outside the main
    thread, and ``error`` (the exception's type) if the block raised.
    """
    if (recorder := _current) is None:
        yield
        return
    at, start, began = clock and replace(clock), time.time(), time.perf_counter()
    try:
        yield
    except BaseException as error:
        payload["error"] = type(error).__name__
        raise
    finally:
        payload.update(name=name, start=start, seconds=time.perf_counter() - began)
        if threading.current_thread() is not threading.main_thread():
            payload["thread"] = threading.current_thread().name
        recorder.record("span", clock=at, **payload)
