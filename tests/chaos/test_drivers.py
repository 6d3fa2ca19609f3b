"""Drivers that are killed or stopped, two runs on one cluster, and ports that are taken."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerLost
from tests.chaos.drivers import driver
from tests.chaos.runs import SIZE, assert_alike, check_checkpoints, check_rows, columns, fit, table, training
from tests.faults import Fault
from tests.hosts.hosts import ended, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


def test_same_command_resumes_after_driver_was_killed(expected, spool, tmp_path):
    with driver(tmp_path, "orphan", 0, 6, "rename") as killed:
        assert killed.wait() == -signal.SIGKILL
        workers = [int(file.read_text()) for file in tmp_path.glob("pid-*")]
        assert len(workers) == SIZE
        until(lambda: all(map(ended, workers)), "the end of the workers of a driver that was killed")
    (folder,) = spool.iterdir()  # a killed driver leaves only the rows that it handed to its workers
    assert sorted(file.name for file in folder.iterdir()) == ["shard-0.arrow", "shard-1.arrow"]
    shutil.rmtree(folder)
    with driver(tmp_path) as again:
        assert again.wait() == 0
    assert_alike(pickle.loads((tmp_path / "result").read_bytes()), expected)  # noqa: S301 - our own
    check_rows(tmp_path)
    check_checkpoints(tmp_path)


@dataclass(frozen=True)
class Wakes:
    """A callback that lets a stopped driver and its workers continue after a step, and waits for their end."""

    driver: int
    step: int

    def on_step(self, run: Any) -> None:
        if run.clock.step == self.step:
            os.killpg(self.driver, signal.SIGCONT)
            until(lambda: ended(self.driver), "the end of the driver")


def test_zombie_driver_is_fenced(pair, expected, tmp_path):
    """Attempt 0 is stopped before a commit, attempt 1 begins, and attempt 0 wakes up in the middle of it."""
    with driver(tmp_path, "freeze", 0, 4, "rename") as zombie:
        assert os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT).si_status == signal.SIGSTOP
        trained = fit(pair, tmp_path, Wakes(zombie.pid, 7))
        _, errors = zombie.communicate()
    assert zombie.returncode == 1
    assert b"Fenced: attempt 0 may not commit" in errors
    assert_alike(trained, expected)
    check_rows(tmp_path)
    check_checkpoints(tmp_path)
    late = [path.parent.name for path in (tmp_path / "checkpoints").glob("attempt-0000-*/manifest.json")]
    # The commit whose fence was checked before attempt 1 began may finish, and no later one.
    assert all(name.endswith(("step-0000000002", "step-0000000004")) for name in late)


def test_two_runs_share_one_cluster(pair, expected, tmp_path):
    """They take turns; a worker that one loses does not concern the other."""
    supervisors = [Supervisor(pair, back_off=0, heartbeat_timeout=3) for _ in range(2)]
    faults = [Fault("kill", 1, 5, f"{tmp_path}/one"), Fault("stop", 0, 3, f"{tmp_path}/two")]
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(fit, *args) for args in zip(supervisors, folders, faults, strict=True)]
        for run in runs:
            assert_alike(run.result(), expected)
    for supervisor, folder in zip(supervisors, folders, strict=True):
        assert [type(failure) for failure in supervisor.failures] == [WorkerLost]
        check_rows(folder)
        check_checkpoints(folder)


@dataclass(frozen=True)
class Taken:
    """A column's ``decode``: when it arrives at a worker, the next port that is bound there is taken, once."""

    mark: str
    decode: Any

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        bind, mark = socket.socket.bind, self.mark

        def taken(self: socket.socket, address: Any) -> None:
            socket.socket.bind = bind  # type: ignore[method-assign]
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            with socket.create_server(("127.0.0.1", 0)) as other:
                bind(self, other.getsockname())

        if not os.path.exists(mark):
            socket.socket.bind = taken  # type: ignore[method-assign]

    def __call__(self, data: bytes) -> Any:
        return self.decode(data)


def test_taken_port_costs_one_attempt(pair, expected, tmp_path):
    reads = columns()
    x, row = reads.inputs
    reads = replace(reads, inputs=(x, replace(row, decode=Taken(str(tmp_path / "mark"), row.decode))))
    supervisor = Supervisor(pair, back_off=0)
    assert_alike(supervisor.gang(training(), table(), reads), expected)
    (failure,) = supervisor.failures
    assert "Address already in use" in str(failure)
