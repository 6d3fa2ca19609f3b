"""What a fit is given and what it brings back, whichever plane it runs on; and fits on the gang plane."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from sparkdl.data.columns import Columns
from sparkdl.ml.checkpointing import keeping, make_supervisor
from sparkdl.ml.fit_monitor import Watch
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.persistence.export import Signature
from sparkdl.ml.report import make_report, scalar_output
from sparkdl.ml.run import Run
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.loop import Trained
from sparkdl.training.objective import Objective

if TYPE_CHECKING:
    from sparkdl.ml.estimator import GangEstimator


@dataclass(frozen=True)
class Fit:
    """What a fit is given.

    Attributes:
        data: the rows.
        columns: which of their columns become which tensors.
        objective: what is minimised.
        run: where it keeps what it leaves behind.
        configuration: the estimator's Params, as JSON values by name.
    """

    data: DataFrame
    columns: Columns
    objective: Objective
    run: Run
    configuration: dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """What a fit brings back.

    Attributes:
        weights: of the model, safetensors.
        history: a row per epoch or round.
        report: what it took.
        scalar: whether the model's output is one number for each row.
        signature: shape and dtype of a row of each input; None where they have several.
    """

    weights: bytes
    history: list[dict[str, Any]]
    report: dict[str, Any]
    scalar: bool
    signature: Signature | None


def make_cluster(estimator: GangEstimator, fit: Fit, *, title: str) -> SparkCluster:
    """The cluster of the rows' session, as the Params have it."""
    return SparkCluster(
        fit.data.sparkSession,
        estimator.getNumWorkers(),
        device=estimator.getDevice(),
        slot_wait=estimator.getSlotWait(),
        allow_plaintext=estimator.getAllowPlaintext(),
        events=fit.run.events if estimator.getEvents() else None,
        logs=estimator.getLogLevel(),
        title=title,
    )


def fit_gang(estimator: GangEstimator, fit: Fit, watch: Watch) -> Fitted:
    """Train on a gang, again where it fails.

    Raises:
        InvalidInput: a Param or a column cannot be used.
        SparkdlError: the gang failed, and it is not worth another attempt.
    """
    start = time.monotonic()
    estimator.warn_of_unused(estimator.names_outside(Scope.GANG))
    training, cluster = estimator.training(), make_cluster(estimator, fit, title=watch.title)
    with keeping(fit.run.directory, estimator.getCheckpointEvery(), fit.configuration) as keeper:
        supervisor = make_supervisor(cluster, estimator, keeper)
        watch.begin(fit.data.sparkSession)
        members: list[Trained] = supervisor.gang(
            replace(training, keeper=keeper),
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
