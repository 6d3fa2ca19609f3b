"""Drivers that are killed or stopped, several of them, and several runs in one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerLost
from tests.chaos.drivers import driver, ends, result
from tests.chaos.runs import SIZE, check_checkpoints, check_rows, columns, fit, table, training
from tests.faults import Fault
from tests.training.test_resume import assert_alike

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@pytest.mark.parametrize(("phase", "step"), [("step", 5), ("shard", 6), ("rename", 6)])
def test_the_driver_is_killed_and_the_same_command_goes_on(whole, spool, tmp_path, phase, step):
    with driver(tmp_path, "orphan", 0, step, phase) as killed:
        assert killed.wait() == -signal.SIGKILL
        members = [int(file.read_text()) for file in tmp_path.glob("pid-*")]
        assert len(members) == 2
        assert all(ends(pid) for pid in members)  # no member outlives its driver
    (left,) = spool.iterdir()  # a driver that was killed leaves the rows that it has handed to its members, alone
    assert sorted(file.name for file in left.iterdir()) == ["part-0.arrow", "part-1.arrow"]
    shutil.rmtree(left)
    with driver(tmp_path) as again:
        assert again.wait() == 0
    assert_alike(result(tmp_path), whole)
    check_rows(tmp_path)
    check_checkpoints(tmp_path)


@dataclass(frozen=True)
class Wakes:
    """A hook that lets a stopped driver and its members run on after a step, and waits for their end."""

    driver: int
    step: int

    def on_step(self, run: Any) -> None:
        if run.clock.step == self.step:
            os.killpg(self.driver, signal.SIGCONT)
            assert ends(self.driver)


@pytest.mark.parametrize(("phase", "step"), [("step", 5), ("written", 4), ("rename", 4)])
def test_a_zombie_that_wakes_up_commits_nothing_new(pair, whole, tmp_path, phase, step):
    """Attempt 0 is stopped as a whole, attempt 1 begins, and in the middle of that attempt 0 goes on."""
    with driver(tmp_path, "freeze", 0, step, phase) as zombie:
        assert os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT).si_status == signal.SIGSTOP
        found = fit(pair, tmp_path, hooks=[Wakes(zombie.pid, 7)])
        _, told = zombie.communicate()
    assert zombie.returncode == 1
    assert b"Fenced: attempt 0 may not commit" in told
    assert_alike(found, whole)
    check_rows(tmp_path)
    check_checkpoints(tmp_path)
    names = [path.parent.name for path in (tmp_path / "checkpoints").glob("attempt-*/manifest.json")]
    late = [name for name in names if name.startswith("attempt-0000")]
    # One that had looked before the other one began may finish that commit, and none after it.
    assert all("step-0000000004" in name or "step-0000000002" in name for name in late)


def test_two_runs_at_once_on_one_cluster(pair, whole, tmp_path):
    """They take turns; a member that one loses is none of the other's business."""
    supervisors = [Supervisor(pair, back_off=0, heartbeat_timeout=3) for _ in range(2)]
    faults = [Fault("kill", 1, 5, str(tmp_path / "one")), Fault("stop", 0, 3, str(tmp_path / "two"))]
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(fit, *given) for given in zip(supervisors, folders, faults, strict=True)]
        for run in runs:
            assert_alike(run.result(), whole)
    for supervisor, folder in zip(supervisors, folders, strict=True):
        assert [type(failure) for failure in supervisor.failures] == [WorkerLost]
        check_rows(folder)
        check_checkpoints(folder)


# ---- ports -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """A column's ``decode`` on whose arrival at a member the next port that is asked for is taken, once."""

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


def test_a_port_that_is_taken_costs_an_attempt(pair, whole, tmp_path):
    wanted = columns()
    x, row = wanted.inputs
    wanted = replace(wanted, inputs=(x, replace(row, decode=Taken(str(tmp_path / "mark"), row.decode))))
    supervisor = Supervisor(pair, back_off=0)
    assert_alike(supervisor.gang(training(), table(), wanted), whole)
    (failure,) = supervisor.failures
    assert "Address already in use" in str(failure)


def test_an_outer_launchers_port_is_not_asked_for(pair, whole, monkeypatch):
    """Somebody listens where ``MASTER_PORT`` says; nobody comes."""
    with socket.create_server(("127.0.0.1", 0)) as other, LocalCluster(SIZE, timeout=60) as cluster:
        other.setblocking(False)
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        assert_alike(cluster.gang(training(), table(), columns()), whole)
        with pytest.raises(BlockingIOError):
            other.accept()
