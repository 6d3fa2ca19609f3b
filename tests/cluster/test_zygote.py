"""Processes forked from one that has loaded PyTorch."""

from __future__ import annotations

import ast
import os
import select
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.zygote import fork, zygote


def report(target: str) -> str:
    """What a worker writes that calls a function with a file descriptor."""
    end, theirs = os.pipe()
    worker = fork(target, theirs)
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
    found = ast.literal_eval(report("tests.cluster.test_zygote:surroundings"))
    assert found == ("later", str(tmp_path), True)


def test_zygote_has_one_thread():
    """A fork copies one thread: a lock that another one holds would stay locked in the worker."""
    worker = fork("tests.cluster.test_zygote:leave")  # once it has ended, the zygote has loaded all that it loads
    worker.wait(10.0)
    worker.close()
    assert len(list(Path(f"/proc/{zygote().pid}/task").iterdir())) == 1


def test_workers_draw_different_numbers():
    assert report("tests.cluster.test_zygote:draw") != report("tests.cluster.test_zygote:draw")


def test_exit_code_of_a_worker():
    worker = fork("tests.cluster.test_zygote:leave")
    assert worker.wait(10.0) == 5
    assert worker.wait() == 5
    worker.close()


def test_worker_that_runs_is_waited_for_and_killed():
    worker = fork("signal:pause")
    with pytest.raises(TimeoutError, match="still runs"):
        worker.wait(0.0)
    assert worker.alive
    worker.kill()
    assert worker.wait() == -signal.SIGKILL
    assert not worker.alive
    worker.close()


def test_exit_code_is_unknown_if_the_zygote_has_died():
    worker = fork("signal:pause")
    os.kill(zygote().pid, signal.SIGKILL)
    worker.kill()
    assert worker.wait() is None
    worker.close()


def test_killed_zygote_is_replaced_and_its_workers_live():
    with LocalCluster(2) as cluster:
        before = cluster.gang(lambda world, part: os.getpid())
        os.kill(zygote().pid, signal.SIGKILL)
        assert cluster.gang(lambda world, part: os.getpid()) == before
        with open(os.pidfd_open(before[1])) as end:
            os.kill(before[1], signal.SIGKILL)
            assert select.select([end], [], [], 10.0)[0]
        after = cluster.gang(lambda world, part: os.getpid())
        assert after[0] == before[0]
        assert after[1] != before[1]
