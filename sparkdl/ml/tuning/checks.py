"""Checks of a search before anything is launched."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.ml import Pipeline
from pyspark.sql import DataFrame

from sparkdl.errors import InvalidInput
from sparkdl.ml.derived_columns.label_columns import check_label_type
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.trials.composite import CompositeEstimator
from sparkdl.ml.trials.single_worker import trains_in_task, warn_of_ignored
from sparkdl.ml.tuning.params import TunerParams
from sparkdl.rounds import is_algorithm
from sparkdl.spark.columns import check_frame, select_columns


def checked_estimator(tuner: TunerParams, dataset: DataFrame) -> DistributedEstimator:
    """The estimator of a search, which can train on the rows; warns of the Params that trials ignore.

    Raises:
        InvalidInput: it is of another kind, lacks validation rows, or cannot pause at the rungs.
    """
    estimator = tuner.getOrDefault("estimator") if tuner.isDefined("estimator") else None
    if not isinstance(estimator, DistributedEstimator):
        raise InvalidInput(
            f"estimator is {_called(estimator)}; expected a TorchClassifier, a TorchRegressor or a TorchEstimator."
            + _advice(estimator)
        )
    if not tuner.isDefined("paramSpace"):
        raise InvalidInput(
            "paramSpace is not set; expected hyperparameters, such as {'learningRate': Range(1e-4, 1e-1)}."
        )
    check_frame(dataset, bounded=True)
    monitor = estimator.getMonitor()
    if estimator.getValidationFraction() is None and estimator.getValidationIndicatorCol() is None:
        raise InvalidInput(
            "the estimator has no validation rows, by which trials are compared; expected validationFraction, such as "
            "0.2, or validationIndicatorCol."
        )
    if monitor is not None and not monitor.startswith("valid_"):
        raise InvalidInput(
            f"monitor is {monitor!r}, which is of training rows; expected a column of validation rows, such as "
            "'valid_loss'."
        )
    if tuner.getOrDefault("earlyTermination") is not None:
        _check_pauses(estimator, tuner.getOrDefault("paramSpace"))
    select_columns(dataset, estimator.read_columns())
    check_label_type(estimator, estimator.kind, dataset)
    _warn(estimator, dataset)
    return estimator


def _check_pauses(estimator: DistributedEstimator, space: dict[str, Any]) -> None:
    without = "Set earlyTermination=None, or"
    if is_algorithm(estimator.getStrategy()):
        raise InvalidInput(
            f"strategy is {estimator.getStrategy()!r}, which trains in rounds, and rungs are epochs. {without} a "
            "strategy of gangs, such as AllReduce()."
        )
    if estimator.getCheckpointInterval() == "never":
        raise InvalidInput(
            f"checkpointInterval is 'never', and a trial that pauses continues from a checkpoint. {without} 'auto'."
        )
    if "epochs" in space:
        raise InvalidInput(
            f"paramSpace has epochs, and earlyTermination decides on the epochs of a trial. {without} leave epochs out."
        )


def _warn(estimator: DistributedEstimator, dataset: DataFrame) -> None:
    if estimator.getRunDir() is not None:
        warnings.warn("runDir of the estimator is ignored; trials use the search's.", stacklevel=5)
    if estimator.getTrackers():
        warnings.warn("trackers of the estimator are ignored; set trackers of the search.", stacklevel=5)
    if trains_in_task(estimator, dataset.sparkSession):
        estimator.single_layout()
        quiet = estimator.copy()
        for name in ("runDir", "trackers", "checkpointInterval"):  # which the search replaces or uses
            quiet.clear(quiet.getParam(name))
        warn_of_ignored(quiet, "trials")


def _called(estimator: object) -> str:
    return "not set" if estimator is None else f"a {type(estimator).__name__}"


def _advice(estimator: object) -> str:
    if isinstance(estimator, Pipeline):
        return " Make the search the last stage of the pipeline: Pipeline(stages=[..., TorchTuner(...)])."
    if isinstance(estimator, CompositeEstimator):
        return " To compare ensembles, use BestOf(candidates=[...])."
    return ""
