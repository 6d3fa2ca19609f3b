"""A signal requests a stop; waiting code and running gangs obey it, or the process exits. Real drivers: tests/cli."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from sparkdl.cluster import shutdown
from sparkdl.cluster.shutdown import forget_stop, pause, request_stop, stop_requested, stoppable, take_sigterm
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import Fenced, InvalidInput, Stopped, WorkerLost
from sparkdl.telemetry.event import Event
from tests.cluster.scripted import Scripted
from tests.sessions import ROOT


@pytest.fixture(autouse=True)
def forget():
    yield
    forget_stop()


def test_pause_ends_with_request(monkeypatch):
    pause(0)
    monkeypatch.setattr(shutdown.time, "sleep", lambda seconds: request_stop("maintenance"))
    with pytest.raises(Stopped, match=r"asked to stop \(maintenance\) and was waiting to begin an attempt"):
        pause(3600)
    with pytest.raises(Stopped):
        pause(0)


def test_sigterm_is_request_within_block():
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_requested() == "the driver got SIGTERM"
        take_sigterm("Spark's JVM")  # if a process group is signalled: no second signal to the same process
        assert stop_requested() == "the driver got SIGTERM"
    assert stop_requested() is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_cannot_trap_signals():
    def block():
        with pytest.warns(UserWarning, match="only a process's main thread"), stoppable():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(block).result() is signal.getsignal(signal.SIGTERM)


TWICE = """
with stoppable():
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop_requested(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""
DEAF = """
with stoppable(limit=0.5):
    request_stop('maintenance')
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("script", "out", "err"),
    [
        (TWICE, "the driver got SIGTERM\n", "the driver got a second SIGTERM: exiting now\n"),
        (DEAF, "", "maintenance, and the job did not stop within 0.5 s: exiting now\n"),
    ],
    ids=["second SIGTERM", "limit"],
)
def test_process_exits(script, out, err):
    script = f"import os, signal, threading\nfrom sparkdl.cluster.shutdown import *\n{script}"
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, out, err)


# ---- gangs -----------------------------------------------------------------------------------------------------------


class Asked(Scripted):
    """A cluster whose gang runs until it is asked to stop or cancelled, and then ends with ``ending``."""

    def __init__(self, ending: Any = None, *, waits: bool = False) -> None:
        super().__init__(self.run)
        self.ending, self.waits = ending, waits
        self.asked: list[int] = []
        self._moved = threading.Event()

    def ask(self, attempt: int) -> None:
        self.asked.append(attempt)
        if self.ending is not None:
            self._moved.set()

    def run(self, listener, attempt, cancellation):
        with cancellation.stopping(self._moved.set):
            if self.waits:
                listener(Event("waiting", -1, attempt, time.time(), None, {"what": "slots", "seconds": 2.0}))
            request_stop("maintenance")
            assert self._moved.wait(60)
            if isinstance(self.ending, Exception):
                raise self.ending
            if self.ending is None:
                raise ConnectionError("the job was cancelled")
            return self.ending


def stop(cluster: Any, limit: float = 60.0, **options: Any) -> Any:
    supervisor = Supervisor(cluster, back_off=0, **options)
    supervisor.stop_limit = limit
    return supervisor.gang(print, attempt=4)


FULL_DISK = Mock(side_effect=OSError("No space left on device"))


@pytest.mark.parametrize(
    ("cluster", "ask", "asked", "message"),
    [
        (Asked(), None, [], r"asked to stop \(maintenance\) and was not saved: it keeps no checkpoints"),
        (Asked(), Asked.ask, [4], r"could not be saved within 0\.5 s"),
        (Asked(), FULL_DISK, [], "could not be asked to save: No space left"),
        (Asked(waits=True), Asked.ask, [4], "had not begun"),
        (Asked(Stopped("saved at step 3")), Asked.ask, [4], "^saved at step 3$"),
        (Asked(WorkerLost("its executor got SIGTERM")), Asked.ask, [4], "failed before it was saved: its executor got"),
    ],
)
def test_gang_stops(cluster, ask, asked, message):
    on_stop = None if ask is None else lambda attempt: ask(cluster, attempt)
    with pytest.raises(Stopped, match=message):
        stop(cluster, 0.5 if "within" in message else 60.0, on_stop=on_stop)
    assert cluster.asked == asked
    assert cluster.begun == [(4, 2)]


@pytest.mark.parametrize("error", [InvalidInput("the loss is nan"), Fenced("attempt 5 has begun"), ZeroDivisionError()])
def test_mistakes_are_raised_unchanged(error):
    cluster = Asked(error)
    with pytest.raises(type(error)) as caught:
        stop(cluster, on_stop=cluster.ask)
    assert caught.value is error


def test_gang_that_ends_keeps_its_values_and_no_other_begins():
    cluster = Asked([1, 2])
    assert stop(cluster, on_stop=cluster.ask) == [1, 2]
    with pytest.raises(Stopped, match="had not begun"):
        stop(Scripted([1, 2]))


def test_request_between_two_attempts():
    cluster = Scripted(WorkerLost("killed"), [1, 2])

    def listener(event: Event) -> None:
        if event.kind == "restart":
            request_stop("maintenance")

    with pytest.raises(Stopped, match="waiting to begin an attempt"):
        Supervisor(cluster, back_off=3600).gang(print, listener=listener)
    assert [attempt for attempt, _ in cluster.begun] == [0]
