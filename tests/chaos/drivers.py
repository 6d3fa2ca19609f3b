"""A driver that is a process, in a session of its own, so that a test can kill it, or stop it with all workers.

``python -m tests.chaos.drivers FOLDER [HOW RANK STEP PHASE]`` starts or resumes the run in a folder. The weights and
the history go to ``FOLDER/result``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.supervisor import Supervisor
from tests.chaos.runs import SIZE, fit
from tests.faults import Fault
from tests.sessions import ROOT


@dataclass(frozen=True)
class Pids:
    """A callback with which workers leave their process ids in a folder."""

    folder: str
    every_rank = True

    def on_start(self, run: Any) -> None:
        Path(self.folder, f"pid-{run.rank}").write_text(str(os.getpid()))


@contextmanager
def driver(folder: Path, *fault: object) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that runs; it and its workers are killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.drivers", str(folder), *map(str, fault)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main(folder: str, *fault: str) -> None:
    callbacks: list[Any] = [Pids(folder)]
    if fault:
        how, rank, step, phase = fault
        callbacks.append(Fault(how, int(rank), int(step), f"{folder}/mark", phase))
    with LocalCluster(SIZE, timeout=60) as cluster:
        trained = fit(Supervisor(cluster, back_off=0, heartbeat_timeout=30), Path(folder), *callbacks)
    Path(folder, "result").write_bytes(pickle.dumps(trained))


if __name__ == "__main__":
    main(*sys.argv[1:])
