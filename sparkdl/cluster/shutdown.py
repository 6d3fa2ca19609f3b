"""Requests to stop, usually by a signal, and how a gang obeys them.

    with stoppable():                # the job: SIGTERM becomes a request
        model = estimator.fit(df)    # raises Stopped once the workers have saved

Other work in the block, such as saving a model, continues. All of it has 28 s, two fewer than Kubernetes' default
before SIGKILL.

A signal handler may interrupt the main thread while it holds the lock that ``threading.Event.set`` takes. Therefore a
request is an element of a list, and waiting code polls it every quarter of a second.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.errors import Fenced, InvalidInput, SparkdlError, Stopped
from sparkdl.io.threads import watching

TERMINATED = 143
"""The exit code of a process that SIGTERM ended: 128 + 15."""

POLL = 0.25  # seconds between two polls
_LIMIT = 28.0  # seconds

_reasons: list[str] = []
_signalled: list[str] = []  # receivers of SIGTERM


def request_stop(reason: str) -> None:
    """Ask this process to save and stop; callable from signal handlers and any thread. The first ``reason`` counts."""
    _reasons.append(reason)


def stop_requested() -> str | None:
    """Why a stop was requested; None without a request."""
    return next(iter(_reasons), None)


def forget_stop() -> None:
    """Withdraw the request, so that new work may start."""
    _reasons.clear()
    _signalled.clear()


def stopped(what: str, again: str = "resumes from its newest checkpoint, if it has one") -> Stopped:
    """The error for a run that was asked to stop and ``what``; ``again`` is what the same fit would do."""
    return Stopped(f"the run was asked to stop ({stop_requested()}) and {what}. The same fit {again}.")


def pause(seconds: float) -> None:
    """Sleep for ``seconds``; raises Stopped if a stop is or was requested."""
    end = time.monotonic() + seconds
    while stop_requested() is None:
        remaining = end - time.monotonic()
        if remaining <= 0:
            return
        time.sleep(min(remaining, POLL))
    raise stopped("was waiting to begin an attempt")


def take_sigterm(receiver: str) -> None:
    """Treat a SIGTERM as a request to stop; the second one of the same ``receiver`` process ends this one at once."""
    if receiver in _signalled:
        _end(f"{receiver} got a second SIGTERM")
    _signalled.append(receiver)
    request_stop(f"{receiver} got SIGTERM")


@contextmanager
def stoppable(limit: float = _LIMIT) -> Iterator[None]:
    """Let SIGTERM request a stop within a block of the main thread; the block's end withdraws the request.

    Args:
        limit: seconds from any request until a process still in the block exits with code 143; default 28.
    """
    if threading.current_thread() is not threading.main_thread():
        warnings.warn("SIGTERM is not trapped: only a process's main thread can trap signals.", stacklevel=3)
        yield
        return

    def last_resort(ended: threading.Event) -> None:
        if _requested_before(ended) and not ended.wait(limit):
            _end(f"{stop_requested()}, and the job did not stop within {limit:g} s")

    before = signal.signal(signal.SIGTERM, lambda *_: take_sigterm("the driver"))
    try:
        with watching(last_resort, "sparkdl-stop"):
            yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        forget_stop()


def _end(why: str) -> None:
    os.write(2, f"{why}: exiting now\n".encode())  # print is not for signal handlers
    os._exit(TERMINATED)


@contextmanager
def watch_shutdown(
    cancellation: CancellationToken, ask: Callable[[], None] | None, *, waiting: Callable[[], bool], limit: float
) -> Iterator[None]:
    """Obey requests to stop while one attempt of a gang runs in the block.

    Args:
        cancellation: of the gang.
        ask: called once, in a thread: asks the workers to save and raise ``Stopped``; None cancels the gang at once.
        waiting: whether the gang waits for slots, and has nothing to save.
        limit: seconds from the request until the gang is cancelled.

    Raises:
        Stopped: a stop was requested before the block, or within it and the gang failed, except by a user's mistake.
    """

    def ask_to_save() -> None:
        assert ask is not None
        try:
            ask()
        except (OSError, SparkdlError) as error:
            cancellation.end(stopped(f"could not be asked to save: {error}"))

    def obey(ended: threading.Event) -> None:
        if not _requested_before(ended):
            return
        if ask is None:
            cancellation.end(stopped("was not saved: it keeps no checkpoints", "begins anew"))
            return
        threading.Thread(target=ask_to_save, name="sparkdl-stop-ask", daemon=True).start()
        end = time.monotonic() + limit
        while not ended.wait(POLL) and cancellation.error is None:
            if waiting():
                cancellation.end(stopped("had not begun"))
            elif time.monotonic() > end:
                cancellation.end(stopped(f"could not be saved within {limit:g} s"))

    if stop_requested() is not None:
        raise stopped("had not begun")
    try:
        with watching(obey, "sparkdl-stop-watch"):
            yield
    except (Stopped, InvalidInput, Fenced):
        raise
    except SparkdlError as error:
        if stop_requested() is None:
            raise
        raise stopped(f"failed before it was saved: {error.message}") from error


def _requested_before(ended: threading.Event) -> bool:
    while stop_requested() is None:
        if ended.wait(POLL):
            return False
    return True
