"""Seconds until the supervisor knows that a worker was killed or stopped."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.mlp import adam, small
from sparkdl import LocalCluster, Objective
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import WorkerLost
from sparkdl.training.loop import Training

WORKERS = 2
STEP = 200  # the signal follows this step: about a second of steps and heartbeats comes before
ROWS = 1 << 18
COLUMNS = Columns((InputColumn("features"),), InputColumn("label"))


@dataclass(frozen=True)
class Strike:
    """A callback that writes the time and then signals its own worker.

    Attributes:
        signal: SIGKILL or SIGSTOP.
        rank: of the worker.
        mark: file with the time, Unix seconds.
    """

    signal: int
    rank: int
    mark: str

    def on_step(self, run: Any) -> None:
        if (run.rank, run.clock.step) == (self.rank, STEP):
            Path(self.mark).write_text(repr(time.time()), encoding="ascii")
            os.kill(os.getpid(), self.signal)


def detect(cluster: LocalCluster, kind: int, rank: int, limit: float) -> float:
    """Seconds from a signal to a worker until ``Supervisor.gang`` raises.

    Args:
        cluster: the workers; dead ones are restarted for the next call.
        kind: the signal.
        rank: of the worker.
        limit: the supervisor's ``heartbeat_timeout``, seconds.
    """
    data = {"features": np.zeros((ROWS, 28), np.float32), "label": np.zeros(ROWS, np.float32)}
    supervisor = Supervisor(cluster, max_restarts=0, heartbeat_timeout=limit)
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        strike = Strike(kind, rank, f"{folder}/mark")
        training = Training(Objective(small, nn.MSELoss(), adam), 256, callbacks=(strike,))
        try:
            supervisor.gang(training, data, COLUMNS)
        except WorkerLost:
            return time.time() - float(Path(strike.mark).read_text(encoding="ascii"))
    raise RuntimeError(f"nobody noticed that rank {rank} got {signal.Signals(kind).name}")
