"""An executor that is killed in the midst of a fit: from SIGKILL to the first step after the restored checkpoint.

Every round is a new application on a standalone cluster. Its first fit is cold: no Python worker has been started and
torch has been imported nowhere but in the driver. The time from its call to its first step is one side. Then the fit's
first checkpoint is kept, an executor is killed at once, and the time to the first step of the next attempt, by the
same call of fit, is the other.
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

MEMBERS = 2
ROWS = 200_000
BATCH = 2048  # rows of the global batch
EPOCHS = 15  # a few seconds: the executor is killed after the first one
PARTS = ("detect", "resubmit", "launch", "feed", "restore", "step")
"""Of a recovery: until the supervisor knows; until Spark has the next job; until the last member runs; until all have
read and sorted their rows and met; until they have the checkpoint's state; until a step is over. A cold fit has all but
the first, and nothing to restore."""


@dataclass
class Watch:
    """Listens to a fit, and kills the executor of one rank after the first checkpoint.

    Attributes:
        rank: the rank.
        killed: when, in seconds since the epoch; 0 as long as it has not happened.
        times: (attempt, kind of event) -> when the last member recorded it, and of a restart when it was known.
        resumed: the first step of the second attempt.
    """

    rank: int
    killed: float = 0.0
    times: dict[tuple[int, str], float] = field(default_factory=dict)
    resumed: int | None = None
    _pids: dict[int, int] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Called with one event at a time."""
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

    def members(self, attempt: int) -> list[float]:
        """When the last member of an attempt ran, had met the others and had its state, and when the first step was."""
        return [self.times[attempt, kind] for kind in ("started", "joined", "restored", "first step")]


def executor_of(worker: int) -> int:
    """The pid of the executor's JVM, from that of its Python worker: the daemon that forks workers is between them."""
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
        parts: seconds of each of ``PARTS``, which add up to ``recovery``.
        cold_parts: those of ``cold``.
    """

    cold: float
    recovery: float
    parts: Mapping[str, float]
    cold_parts: Mapping[str, float]

    @property
    def allowed(self) -> float:
        """Seconds that the recovery may take."""
        return 1.5 * self.cold + 3.0


def recover(url: str, rank: int) -> Recovery:
    """One application.

    Args:
        url: the master's.
        rank: of the member whose executor is killed.
    """
    watch = Watch(rank)
    with session("recovery", master=url, mebibytes=1024) as spark, tempfile.TemporaryDirectory() as folder:
        frame = materialised(samples(spark, ROWS, partitions=MEMBERS))
        # What TorchRegressor.fit does with runDir and checkpointInterval="1 second", with this listener and this
        # checkpointer.
        began = time.time()
        estimator = TorchRegressor(
            model=small, optimizer=adam, numWorkers=MEMBERS, batchSize=BATCH, epochs=EPOCHS, callbacks=[FirstStep()]
        )
        checkpointer = MarkedCheckpointer(Checkpoints(folder, run="benchmark"), CheckpointInterval.of("1 second"))
        supervisor = Supervisor(SparkCluster(spark, MEMBERS))
        training = replace(estimator.training(), checkpointer=checkpointer)
        supervisor.gang(training, frame, estimator.read_columns(), listener=watch)
        submitted = [_submitted(spark, after=begin) for begin in (began, watch.times[0, "restart"])]
    if watch.resumed is None or watch.resumed < 2:
        raise RuntimeError(f"the second attempt began with step {watch.resumed}, and not after a checkpoint")
    cold = [began, began, submitted[0], *watch.members(0)]
    again = [watch.killed, watch.times[0, "restart"], submitted[1], *watch.members(1)]
    return Recovery(cold[-1] - began, again[-1] - watch.killed, _parts(again), _parts(cold))


def _parts(moments: Sequence[float]) -> dict[str, float]:
    return {name: end - begin for name, (begin, end) in zip(PARTS, pairwise(moments), strict=True)}


def _submitted(spark: SparkSession, after: float) -> float:
    """When Spark got the first job after this time, seconds since the epoch."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    times = [jobs.apply(index).submissionTime().get().getTime() / 1000 for index in range(jobs.size())]
    return min(each for each in times if each >= after)
