"""What happens on the workers, recorded from anywhere in their code through one current recorder.

    with Channel(print) as channel:  # the driver; channel.endpoint travels inside the task
        ...

    with Recorder(endpoint, rank=rank) as recorder, recording(recorder):  # the worker
        with span("forward", clock=clock):
            ...
        record("loss", clock=clock, value=0.25)

``sparkdl.telemetry.recorder`` says what recording promises, and ``sparkdl.telemetry.protocol`` what the way to the
driver protects: strangers are not heard and nothing can be replayed, but contents are authenticated, NOT encrypted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

from sparkdl.telemetry.clock import Clock

__all__ = ["PROCESS", "Sink", "notify", "reading", "record", "recording", "span"]

PROCESS = uuid.uuid4().hex
"""An id of this process, in the warnings that it records."""


class Sink(Protocol):
    """Takes events; a ``Recorder`` is one."""

    def put(self, kind: str, clock: dict[str, int] | None, payload: dict[str, Any]) -> None:
        """Take an event that happens now; never raises and never waits."""


_current: Sink | None = None


def _install(recorder: Sink | None) -> Sink | None:
    global _current  # a context variable would not reach the threads of the feed
    previous, _current = _current, recorder
    return previous


# A forked child, such as a loader's worker, has the recorder but not its thread: nobody would empty the queue.
os.register_at_fork(after_in_child=lambda: _install(None))


@contextlib.contextmanager
def recording(recorder: Sink | None) -> Iterator[None]:
    """Make ``recorder`` the one that ``record`` and ``span`` use, in all threads of this process, then restore.

    None switches recording off. It does not close the recorder.
    """
    previous = _install(recorder)
    try:
        yield
    finally:
        _install(previous)


def record(kind: str, /, *, clock: Clock | None = None, **payload: Any) -> None:
    """Record an event with the current recorder, as ``Recorder.record`` does; without one do nothing."""
    recorder = _current
    if recorder is not None:
        recorder.put(kind, reading(clock), payload)


def notify(message: str) -> None:
    """Warn the user here and, by ``sparkdl.telemetry.log_forwarding.pass_on``, on the driver."""
    record("warning", message=message, process=PROCESS)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def span(name: str, /, *, clock: Clock | None = None, **payload: Any) -> Iterator[None]:
    """Record how long a block, or a decorated function, takes; without a current recorder do nothing.

    The event has kind ``"span"``, the clock as it was at the start, and in its payload ``name``, ``start`` (unix
    seconds), ``seconds`` (of the performance counter), ``thread`` where it was not the main one, ``error`` (the
    exception's type) if one ended it, and the given values.
    """
    recorder = _current
    if recorder is None:
        yield
        return
    at, start, began = reading(clock), time.time(), time.perf_counter()
    try:
        yield
    except BaseException as error:
        payload["error"] = type(error).__name__
        raise
    finally:
        payload.update(name=name, start=start, seconds=time.perf_counter() - began)
        if threading.current_thread() is not threading.main_thread():
            payload["thread"] = threading.current_thread().name
        recorder.put("span", at, payload)


def reading(clock: Clock | None) -> dict[str, int] | None:
    """Return ``clock.state_dict()``, at a tenth of its cost."""
    return None if clock is None else {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
