"""A request to stop: made in this process, as a rule by a signal, and heeded by whoever runs a gang.

    with stoppable():                # the job: SIGTERM becomes a request
        model = estimator.fit(df)    # raises Stopped once the members have saved

A gang that is asked to stop saves and ends (``StopWatch``). What else runs in the block goes on: a
model that is being saved is saved. Whatever it is, it has 28 s, two less than what Kubernetes gives by default before
SIGKILL.

A signal handler runs between any two instructions of the main thread, which may hold the very lock that a
``threading.Event`` takes to be set. So a request is an element of a list, and whoever waits for one looks every quarter
of a second.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from sparkdl.cluster.cancellation import Guard
from sparkdl.errors import Fenced, InvalidInput, SparkdlError, Stopped

TERMINATED = 143
"""The exit code of a process that SIGTERM has ended: 128 + 15."""

POLL = 0.25  # seconds between two looks
_LIMIT = 28.0  # seconds

_reasons: list[str] = []
_signalled: list[str] = []  # whom SIGTERM was sent to


def request_stop(reason: str) -> None:
    """Ask what runs in this process to save and to stop; may be called from a signal handler and from any thread.

    Args:
        reason: why, for the error's message; the first one counts.
    """
    _reasons.append(reason)


def stop_requested() -> str | None:
    """Why a stop was requested; None as long as it was not."""
    return next(iter(_reasons), None)


def forget_stop() -> None:
    """Take the request back: what comes next may run."""
    _reasons.clear()
    _signalled.clear()


def stopped(what: str) -> Stopped:
    """The error that says what has become of the run that was asked to stop."""
    return Stopped(
        f"the run was asked to stop ({stop_requested()}) and {what}. The same fit goes on from its newest checkpoint, "
        "if it has one."
    )


def pause(seconds: float) -> None:
    """Wait, unless a stop is requested.

    Raises:
        Stopped: it is, or was.
    """
    end = time.monotonic() + seconds
    while stop_requested() is None:
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, POLL))
    raise stopped("was waiting to begin an attempt")


def take_sigterm(receiver: str) -> None:
    """Take a SIGTERM for a request to stop, and the second one of the same receiver for an order to end at once.

    Args:
        receiver: the process that it was sent to. Where a process group is signalled, several of one job get theirs.
    """
    if receiver in _signalled:
        _end(f"{receiver} got a second SIGTERM")
    _signalled.append(receiver)
    request_stop(f"{receiver} got SIGTERM")


@contextmanager
def stoppable(limit: float = _LIMIT) -> Iterator[None]:
    """A block of the main thread in which SIGTERM requests a stop; at its end the request is forgotten.

    Args:
        limit: seconds after a request, whoever made it, at which the process is ended with the exit code 143 if it is
            still in the block; default 28.
    """
    if threading.current_thread() is not threading.main_thread():
        warnings.warn("SIGTERM is not trapped: only the main thread of a process can.", stacklevel=3)
        yield
        return
    over = threading.Event()
    threading.Thread(target=_last_resort, args=(over, limit), name="sparkdl-stop", daemon=True).start()
    before = signal.signal(signal.SIGTERM, lambda *_: take_sigterm("the driver"))
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        forget_stop()


def _last_resort(over: threading.Event, limit: float) -> None:
    while (reason := stop_requested()) is None:
        if over.wait(POLL):
            return
    if not over.wait(limit):
        _end(f"{reason}, and after {limit:g} s the job has not stopped by itself")


def _end(why: str) -> None:
    os.write(2, f"{why}: it is ended now\n".encode())  # print is not for signal handlers
    os._exit(TERMINATED)


class StopWatch:
    """Watches for a request to stop (``sparkdl.cluster.shutdown``) while one attempt of a gang runs in the block.

    Args:
        guard: the gang's.
        ask: asks the members to save and to raise ``Stopped``, once, in a thread of its own; None if they cannot, and
            the gang is to be ended at once.
        waiting: whether the gang waits for slots: then there is nothing to save.
        limit: seconds that the members have, after which the gang is ended.

    Raises:
        Stopped: a stop was requested before the block; or in it, and the gang failed, of whatever, but for a user's
            mistake.
    """

    def __init__(
        self, guard: Guard, ask: Callable[[], None] | None, *, waiting: Callable[[], bool], limit: float
    ) -> None:
        self._guard, self._ask, self._waiting, self._limit = guard, ask, waiting, limit
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sparkdl-stop-watch", daemon=True)

    def __enter__(self) -> StopWatch:
        if stop_requested() is not None:
            raise stopped("had not begun")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        known = isinstance(error, (Stopped, InvalidInput, Fenced))
        if stop_requested() is not None and isinstance(error, SparkdlError) and not known:
            raise stopped(f"failed before it was saved: {error.message}") from error

    def _look(self) -> None:
        while stop_requested() is None:
            if self._over.wait(POLL):
                return
        if self._ask is None:
            self._end("was not saved: it keeps no checkpoints")
            return
        threading.Thread(target=self._call, args=(self._ask,), name="sparkdl-stop-ask", daemon=True).start()
        end = time.monotonic() + self._limit
        while not self._over.wait(POLL):
            if self._waiting():
                self._end("had not begun")
                return
            if time.monotonic() > end:
                self._end(f"could not be saved within {self._limit:g} s")
                return

    def _call(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except (OSError, SparkdlError) as error:
            self._end(f"could not be told to save: {error}")

    def _end(self, what: str) -> None:
        self._guard.end(stopped(what))
