"""A signal requests a stop, and waiting code obeys it; a process that does not obey exits."""

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


def test_first_reason_counts_until_forgotten():
    assert stop_requested() is None
    request_stop("maintenance")
    request_stop("another")
    assert stop_requested() == "maintenance"
    forget_stop()
    assert stop_requested() is None


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
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, out, err)
