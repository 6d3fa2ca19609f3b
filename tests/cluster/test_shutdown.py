"""A request to stop is made by a signal and heeded by all that waits; what does not heed it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl.cluster import shutdown
from sparkdl.cluster.shutdown import forget_stop, pause, request_stop, stop_requested, stoppable, take_sigterm
from sparkdl.errors import Stopped

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def forget():
    yield
    forget_stop()


def test_the_first_reason_counts_until_it_is_forgotten():
    assert stop_requested() is None
    request_stop("maintenance")
    request_stop("another")
    assert stop_requested() == "maintenance"
    forget_stop()
    assert stop_requested() is None


def test_a_pause_ends_with_the_request(monkeypatch):
    pause(0)
    monkeypatch.setattr(shutdown.time, "sleep", lambda seconds: request_stop("maintenance"))
    with pytest.raises(Stopped, match=r"asked to stop \(maintenance\) and was waiting to begin an attempt"):
        pause(3600)
    with pytest.raises(Stopped):
        pause(0)


def test_sigterm_is_a_request_within_the_block():
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_requested() == "the driver got SIGTERM"
        take_sigterm("Spark's JVM")  # as where a process group is signalled: not a second one of the same
        assert stop_requested() == "the driver got SIGTERM"
    assert stop_requested() is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_cannot_trap_signals():
    def block():
        with pytest.warns(UserWarning, match="only the main thread"), stoppable():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(block).result() is signal.getsignal(signal.SIGTERM)


def ended(script):
    """How a Python with this script ends."""
    script = "import os, signal, threading\nfrom sparkdl.cluster.shutdown import *\n" + script
    return subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_second_sigterm_ends_the_process():
    found = ended(
        "with stoppable():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(stop_requested(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Event().wait()\n"
    )
    assert (found.returncode, found.stdout) == (143, "the driver got SIGTERM\n")
    assert found.stderr == "the driver got a second SIGTERM: it is ended now\n"


def test_what_does_not_stop_is_ended():
    found = ended("with stoppable(limit=0.5):\n    request_stop('maintenance')\n    threading.Event().wait()\n")
    assert found.returncode == 143
    assert found.stderr == "maintenance, and after 0.5 s the job has not stopped by itself: it is ended now\n"
