"""Processes forked from a process that has loaded PyTorch."""

from __future__ import annotations

import ast
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparkdl.cluster import zygote as module
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.zygote import fork, zygote
from sparkdl.errors import ClusterUnavailable

THIS = "tests.cluster.test_zygote"


def report(function: str) -> str:
    """The bytes that a worker writes to the file descriptor in its argument."""
    end, theirs = os.pipe()
    worker = fork(f"{THIS}:{function}", theirs)
    os.close(theirs)
    with open(end) as file:
        text = file.read()
    assert worker.wait(10.0) == 0
    worker.close()
    return text


def surroundings(descriptor: int) -> None:
    os.write(descriptor, repr((os.environ.get("SPARKDL_TEST"), os.getcwd(), "torch._dynamo" in sys.modules)).encode())


def draw(descriptor: int) -> None:
    os.write(descriptor, repr(np.random.rand()).encode())


def leave() -> None:
    os._exit(5)


def test_worker_has_environment_and_folder_of_the_fork(monkeypatch, tmp_path):
    zygote()
    monkeypatch.setenv("SPARKDL_TEST", "later")
    monkeypatch.chdir(tmp_path)
    assert ast.literal_eval(report("surroundings")) == ("later", str(tmp_path), True)


def test_workers_draw_different_numbers_also_under_a_default_timeout_of_sockets():
    socket.setdefaulttimeout(60.0)
    try:
        assert report("draw") != report("draw")
    finally:
        socket.setdefaulttimeout(None)


def test_exit_code_and_threads_of_the_zygote():
    worker = fork(f"{THIS}:leave")
    assert worker.wait(10.0) == worker.wait() == 5
    worker.close()
    # A fork copies one thread: a lock of another one would stay locked in the worker.
    assert len(list(Path(f"/proc/{zygote().process.pid}/task").iterdir())) == 1


def test_running_worker_times_out_and_is_killed():
    worker = fork("signal:pause")
    with pytest.raises(TimeoutError, match="still runs"):
        worker.wait(0.0)
    assert worker.alive
    worker.kill()
    assert worker.wait() == -signal.SIGKILL
    assert not worker.alive
    worker.close()


@pytest.mark.slow
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_zygote_is_replaced_and_its_workers_live(fate, monkeypatch):
    with LocalCluster(2) as cluster, monkeypatch.context() as patch:
        patch.setattr(module, "ANSWER_SECONDS", 3.0)
        before = cluster.gang(lambda world, shard: os.getpid())
        orphan = fork("signal:pause")
        os.kill(zygote().process.pid, fate)
        orphan.kill()
        assert orphan.wait() is None  # the exit code is unknown
        orphan.close()
        assert cluster.gang(lambda world, shard: os.getpid()) == before
        with open(os.pidfd_open(before[1])) as end:
            os.kill(before[1], signal.SIGKILL)
            assert select.select([end], [], [], 10.0)[0]
        after = cluster.gang(lambda world, shard: os.getpid())
        assert after[0] == before[0]
        assert after[1] != before[1]
    assert report("draw")  # with the usual limit again


@pytest.mark.parametrize(
    ("program", "what"), [("import signal; signal.pause()", "does not answer"), ("exit(3)", "has died")]
)
def test_zygotes_that_never_answer_end_a_fork(monkeypatch, program, what):
    monkeypatch.setattr(module, "_running", {})
    monkeypatch.setattr(module, "_MAIN", program)
    monkeypatch.setattr(module, "START_SECONDS", 0.2)
    with pytest.raises(ClusterUnavailable, match=f"process that forks workers {what}"):
        fork("signal:pause")


def test_zygote_outlives_a_lack_of_descriptors():
    before, (soft, hard) = zygote().process.pid, resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.open(".", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            zygote().exit_code(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert report("draw")
    assert zygote().process.pid == before


@pytest.mark.slow
def test_process_with_threads_must_not_fork():
    script = (
        "import os, signal, threading; from sparkdl.cluster.preload import preload\n"
        "os._exit = lambda code: os.kill(os.getpid(), signal.SIGSTOP)  # the child that the parent waits for\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); preload()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "has 2 threads; expected 1 before it forks workers" in ended.stderr
