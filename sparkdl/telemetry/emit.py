"""What happens on the members, and the one way it reaches the driver.

On the driver a ``Channel`` calls a listener with every ``Event``. In each member process a ``Recorder`` takes events
and a thread of its own sends them; code anywhere below records through the module's current recorder::

    with Channel(print) as channel:  # the driver; channel.endpoint travels inside the task
        ...

    with Recorder(endpoint, rank=rank) as recorder, recording(recorder):  # the member
        with span("forward", clock=clock):
            ...
        record("loss", clock=clock, value=0.25)

``sparkdl.telemetry.protocol`` describes the wire format and what it protects: strangers are not heard and nothing can
be replayed, but contents are authenticated, NOT encrypted.

What recording promises. It never raises into training and never waits: a full queue drops the event and counts it.
Events of steps and spans are sent with the next one of another kind, or within half a second; others at once.
(``Recorder.settle`` waits, for so many seconds at most; a member does so once, before it reads its rows.)
An event counts as delivered once the driver's listener has had it; until then it is the member's, and when the
connection cannot be made or breaks it goes to the fallback file, else it is dropped and counted. So every event is
with the driver, in the file or in the count, and nothing is on its way once ``close`` has returned.

When that stops. An event whose receipt was lost with the connection is with the driver AND in the file or the count.
A process that is killed, or ends without ``close``, takes its queue with it, uncounted. The fallback is flushed to the
system, not to the disk: it outlives the process, not the host. Times are of the member's own clock, and hosts
disagree. A recorder belongs to the process that made it: make it in the member; in a forked child none is installed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

from sparkdl.telemetry.channel import Channel, Event
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.event_file import read_events
from sparkdl.telemetry.protocol import Endpoint
from sparkdl.telemetry.recorder import Recorder, reading

__all__ = [
    "Channel",
    "Endpoint",
    "Event",
    "Recorder",
    "notify",
    "pass_on",
    "read_events",
    "record",
    "recording",
    "span",
]

_PROCESS = uuid.uuid4().hex
_current: Recorder | None = None


def _install(recorder: Recorder | None) -> Recorder | None:
    global _current  # a context variable would not reach the threads of the feed
    previous, _current = _current, recorder
    return previous


# A forked child, such as a loader's worker, has the recorder but not its thread: nobody would empty the queue.
os.register_at_fork(after_in_child=lambda: _install(None))


@contextlib.contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
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
    """Warn the user of something that training goes on with: in this process, and on the driver (``pass_on``)."""
    record("warning", message=message, process=_PROCESS)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def pass_on(event: Event) -> None:
    """Warn here of what a member in another process has warned of."""
    if event.kind == "warning" and event.payload.get("process") != _PROCESS:
        warnings.warn(f"rank {event.rank}: {event.payload['message']}", RuntimeWarning, stacklevel=2)


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
