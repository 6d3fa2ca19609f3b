"""How long it takes until the supervisor knows that a member is gone, or that it stands still."""

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

MEMBERS = 2
STEP = 200  # after which the signal comes: a second or so of steps, and of heartbeats, lies before it
ROWS = 1 << 18
COLUMNS = Columns((InputColumn("features"),), InputColumn("label"))


@dataclass(frozen=True)
class Strike:
    """A callback that sends its member a signal, once the time is written down.

    Attributes:
        signal: SIGKILL or SIGSTOP.
        rank: of the member.
        mark: the file with the time, seconds since the epoch.
    """

    signal: int
    rank: int
    mark: str

    every_rank = True

    def on_step(self, run: Any) -> None:
        """Strike, after a step."""
        if (run.rank, run.clock.step) == (self.rank, STEP):
            Path(self.mark).write_text(repr(time.time()), encoding="ascii")
            os.kill(os.getpid(), self.signal)


def detect(cluster: LocalCluster, kind: int, rank: int, limit: float) -> float:
    """Seconds from a signal to a member until the supervisor has its error, and all members have been ended.

    Args:
        cluster: where; the members that are gone are started again for the next one.
        kind: the signal.
        rank: the member.
        limit: seconds without a sign of life after which the supervisor gives a member up.
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
