"""Fits on a gang of workers."""

from __future__ import annotations

import time
from dataclasses import replace

from sparkdl.cluster.protocol import Cluster
from sparkdl.ml.checkpointing import IDENTITY, keeping, make_supervisor
from sparkdl.ml.fit_monitor import Watch
from sparkdl.ml.fit_spec import FitSpec, Fitted
from sparkdl.ml.report import make_report, scalar_output
from sparkdl.training.spec import Trained


def fit_gang(fit: FitSpec, cluster: Cluster, watch: Watch) -> Fitted:
    """Train on a gang, and again if it fails.

    Args:
        fit: data, training and recovery.
        cluster: runs the gang.
        watch: follows the fit on the driver.

    Raises:
        InvalidInput: a Param or a column cannot be used.
        SparkdlError: the gang failed, and no restart is left or would help.
    """
    start = time.monotonic()
    elastic = fit.recovery.min_workers is not None
    with keeping(fit.run, fit.recovery.checkpoint_every, fit.descriptions, elastic=elastic) as keeper:
        supervisor = make_supervisor(cluster, fit.recovery, keeper)
        watch.begin(fit.data.sparkSession)
        if keeper is not None:
            fit.run.save(IDENTITY, fit.descriptions)
        members: list[Trained] = supervisor.gang(
            replace(fit.training, keeper=keeper),
            fit.data,
            fit.columns,
            listener=watch.logbook,
            attempt=0 if keeper is None else keeper.checkpoints.next_attempt(),
        )
    return Fitted(
        members[0].weights,
        members[0].history,
        make_report(members, time.monotonic() - start, supervisor),
        scalar_output([member.report["output"] for member in members]),
        next((member.report["inputs"] for member in members if member.report["inputs"]), None),
    )
