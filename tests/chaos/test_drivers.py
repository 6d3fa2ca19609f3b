"""Drivers that are killed or stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import ended, until
from sparkdl.cluster.local import LocalCluster
from tests.chaos.runs import SIZE, assert_alike, check_checkpoints, check_rows, fit, logged
from tests.faults import Fault
from tests.sessions import ROOT, command

pytestmark = pytest.mark.chaos


def drive(folder: str, *fault: Any) -> None:
    """A driver that has a fault."""
    with LocalCluster(SIZE, timeout=60) as cluster:
        fit(cluster, Path(folder), Fault(*fault))


@contextlib.contextmanager
def driver(folder: Path, how: str, step: int) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that is a process and has a fault at a commit; it and its workers are killed at the end."""
    line = command(drive, folder, how, 0, step, folder / "mark", "rename", timeout=300)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, env=environment, stderr=pipe, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_next_driver_resumes_after_driver_was_killed(pair, expected, spool, tmp_path):
    with driver(tmp_path, "orphan", 6) as killed:
        assert killed.wait() == -signal.SIGKILL
        workers = {logged(tmp_path, rank)[-1]["pid"] for rank in range(SIZE)}
        until(lambda: all(map(ended, workers)), "the end of the workers of a driver that was killed")
    (folder,) = spool.iterdir()  # a killed driver leaves only the rows that it handed to its workers
    assert sorted(file.name for file in folder.iterdir()) == ["shard-0.arrow", "shard-1.arrow"]
    shutil.rmtree(folder)
    assert_alike(fit(pair, tmp_path), expected)
    check_rows(tmp_path)
    check_checkpoints(tmp_path)


@dataclass(frozen=True)
class Wakes:
    """A callback that lets a stopped driver and its workers continue after step 7, and waits for their end."""

    driver: int
    every_rank = False

    def on_step(self, run: Any) -> None:
        if run.clock.step == 7:
            os.killpg(self.driver, signal.SIGCONT)
            until(lambda: ended(self.driver), "the end of the driver")


def test_zombie_driver_is_fenced(pair, expected, tmp_path):
    """Attempt 0 is stopped before a commit, attempt 1 begins, and attempt 0 wakes up in the middle of it."""
    with driver(tmp_path, "freeze", 4) as zombie:
        assert os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT).si_status == signal.SIGSTOP
        assert_alike(fit(pair, tmp_path, Wakes(zombie.pid)), expected)
        assert b"Fenced: attempt 0 may not commit" in zombie.communicate()[1]
    check_rows(tmp_path)
    check_checkpoints(tmp_path)
    late = [path.parent.name for path in (tmp_path / "checkpoints").glob("attempt-0000-*/manifest.json")]
    # The commit whose fence was checked before attempt 1 began may finish, and no later one.
    assert all(name.endswith(("step-0000000002", "step-0000000004")) for name in late)
