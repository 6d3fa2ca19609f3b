"""Fits on a gang of workers."""

from __future__ import annotations

import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.shared_directory import SharedDirectory
from sparkdl.cluster.protocol import Cluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import InvalidInput
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.fit_spec import FitResult, FitSpec
from sparkdl.ml.report import make_report
from sparkdl.ml.run import IDENTITY, Run, own_checkpoints
from sparkdl.training.spec import TrainingResult
from sparkdl.training.weight_slices import merge_weights


def fit_gang(fit: FitSpec, cluster: Cluster, watch: FitMonitor) -> FitResult:
    """Train on a gang, and again if it fails."""
    start = time.monotonic()
    with _open_checkpointer(fit) as checkpointer:
        supervisor = _make_supervisor(cluster, fit, checkpointer)
        earlier = 0.0 if checkpointer is None else time.time() - checkpointer.checkpoints.began
        attempt = 0 if checkpointer is None else checkpointer.checkpoints.next_attempt()
        watch.begin(fit.data.sparkSession)
        if checkpointer is not None and "callbacks" in (fit.run.load(IDENTITY) or fit.descriptions):
            fit.run.save(IDENTITY, fit.descriptions)
        training = replace(fit.training, checkpointer=checkpointer)
        workers: list[TrainingResult] = supervisor.gang(
            training, fit.data, fit.columns, listener=watch.event_log, attempt=attempt
        )
        if checkpointer is not None:  # the workers have compared the callbacks with the earlier version's
            fit.run.save(IDENTITY, fit.descriptions)
    report = make_report(workers, earlier + time.monotonic() - start, supervisor)
    report["restarts"] += attempt  # the number of attempts of earlier fits
    return FitResult(
        merge_weights([worker.weights for worker in workers]),
        workers[0].history,
        report,
        next((worker.report["output"] for worker in workers if worker.report["output"] is not None), None),
        next((worker.report["inputs"] for worker in workers if worker.report["inputs"]), None),
    )


@contextmanager
def _open_checkpointer(fit: FitSpec) -> Iterator[Checkpointer | None]:
    if fit.checkpoint_interval == "never":
        yield None
        return
    interval, elastic = CheckpointInterval.of(fit.checkpoint_interval), fit.min_workers is not None
    if fit.run.directory is not None:
        yield Checkpointer(own_checkpoints(fit.run, fit.descriptions), interval, elastic=elastic)
        return
    # Serves the attempts of this fit if all workers are on this host.
    with tempfile.TemporaryDirectory(prefix="sparkdl-", ignore_cleanup_errors=True) as folder:
        checkpoints, token = own_checkpoints(Run(folder), fit.descriptions), uuid.uuid4().hex
        SharedDirectory(checkpoints.directory, token).announce()
        yield Checkpointer(checkpoints, interval, elastic=elastic, token=token)


def _make_supervisor(cluster: Cluster, fit: FitSpec, checkpointer: Checkpointer | None) -> Supervisor:
    least = fit.min_workers
    if least is not None and least > cluster.size:
        raise InvalidInput(f"minWorkers is {least}; expected at most numWorkers, which is {cluster.size}.")
    if least is not None and checkpointer is None:
        warnings.warn(
            f"minWorkers={least} without checkpoints (checkpointInterval='never'): each attempt starts anew, and a "
            "smaller gang never grows.",
            stacklevel=4,
        )
    stop = None if checkpointer is None or checkpointer.temporary else checkpointer.checkpoints.attempts.ask_to_stop
    return Supervisor(
        cluster, max_restarts=fit.max_restarts, min_size=least, elastic_timeout=fit.elastic_timeout, on_stop=stop
    )
