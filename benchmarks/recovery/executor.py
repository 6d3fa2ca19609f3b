"""A killed executor: from SIGKILL to the first step after the restored checkpoint.

Every round is a new application on a standalone cluster. Its first fit is cold: no Python worker runs, and only the
driver has imported torch. One side is the time from the call to its first step. After the first checkpoint an executor
is killed; the other side is the time to the first step of the next attempt.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.mlp import adam, small
from benchmarks.recovery.marks import FirstStep, MarkedCheckpointer
from benchmarks.session import materialised, samples, session
from sparkdl import SparkCluster, TorchRegressor
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.telemetry.event import Event

WORKERS = 2
ROWS = 200_000
BATCH = 2048  # rows of the global batch
EPOCHS = 15  # a few seconds; the kill follows the first
PHASES = ("detect", "resubmit", "launch", "feed", "restore", "step")
"""Phases of a recovery. They end when the supervisor knows; Spark has the next job; the last worker runs; all workers
have joined with sorted rows; all have the checkpoint's state; a step is over. A cold fit has no ``detect``, and nothing
to restore."""


@dataclass
class Watch:
    """Listens to a fit, and kills the executor of one rank after the first checkpoint.

    Attributes:
        rank: the rank.
        killed: time of the kill, Unix seconds; 0 before.
        times: (attempt, kind of event) -> time of the last worker's event, or of the restart.
        resumed: the first step of the second attempt.
    """

    rank: int
    killed: float = 0.0
    times: dict[tuple[int, str], float] = field(default_factory=dict)
    resumed: int | None = None
    _pids: dict[int, int] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        self.times[event.attempt, event.kind] = event.time
        if event.kind == "started":
            self._pids[event.rank] = event.payload["pid"]
        if event.kind == "checkpoint" and not self.killed:
            executor = executor_of(self._pids[self.rank])
            self.killed = time.time()
            os.kill(executor, signal.SIGKILL)
        if event.kind == "first step" and event.attempt == 1:
            assert event.clock is not None
            self.resumed = event.clock["step"]

    def phases(self, attempt: int) -> list[float]:
        """Times at which the last worker of an attempt ran, had joined and had its state, and of the first step."""
        return [self.times[attempt, kind] for kind in ("started", "joined", "restored", "first step")]


def executor_of(worker: int) -> int:
    """The pid of the executor's JVM, two parents above its Python worker."""
    found = _parent(_parent(worker))
    if b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{found}/cmdline").read_bytes():
        raise RuntimeError(f"process {found} is no executor")
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


@dataclass(frozen=True)
class Recovery:
    """One round.

    Attributes:
        cold: seconds from the call of fit to its first step.
        recovery: seconds from SIGKILL to the first step after it.
        phases: seconds of each of ``PHASES``; their sum is ``recovery``.
        cold_phases: the same for ``cold``.
    """

    cold: float
    recovery: float
    phases: Mapping[str, float]
    cold_phases: Mapping[str, float]

    @property
    def allowed(self) -> float:
        """Limit of the recovery, seconds."""
        return 1.5 * self.cold + 3.0


def recover(url: str, rank: int) -> Recovery:
    """Run one application.

    Args:
        url: of the master.
        rank: of the worker whose executor is killed.
    """
    watch = Watch(rank)
    with session("recovery", master=url, mebibytes=1024) as spark, tempfile.TemporaryDirectory() as folder:
        frame = materialised(samples(spark, ROWS, partitions=WORKERS))
        # As TorchRegressor.fit with runDir and checkpointInterval="1 second", with this listener and checkpointer.
        began = time.time()
        estimator = TorchRegressor(
            model=small, optimizer=adam, numWorkers=WORKERS, batchSize=BATCH, epochs=EPOCHS, callbacks=[FirstStep()]
        )
        checkpointer = MarkedCheckpointer(Checkpoints(folder, run="benchmark"), CheckpointInterval.of("1 second"))
        supervisor = Supervisor(SparkCluster(spark, WORKERS))
        training = replace(estimator.training(), checkpointer=checkpointer)
        supervisor.gang(training, frame, estimator.read_columns(), listener=watch)
        submitted = [_submitted(spark, after=begin) for begin in (began, watch.times[0, "restart"])]
    if watch.resumed is None or watch.resumed < 2:
        raise RuntimeError(f"the second attempt began at step {watch.resumed}; expected a step after a checkpoint")
    cold = [began, began, submitted[0], *watch.phases(0)]
    again = [watch.killed, watch.times[0, "restart"], submitted[1], *watch.phases(1)]
    return Recovery(cold[-1] - began, again[-1] - watch.killed, _phases(again), _phases(cold))


def _phases(moments: Sequence[float]) -> dict[str, float]:
    return {name: end - begin for name, (begin, end) in zip(PHASES, pairwise(moments), strict=True)}


def _submitted(spark: SparkSession, after: float) -> float:
    """Time of Spark's first job after this time, Unix seconds."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    times = [jobs.apply(index).submissionTime().get().getTime() / 1000 for index in range(jobs.size())]
    return min(each for each in times if each >= after)
