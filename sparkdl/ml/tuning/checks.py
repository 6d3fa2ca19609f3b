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
from sparkdl.spark.columns import select_columns


def checked_estimator(tuner: TunerParams, dataset: DataFrame) -> DistributedEstimator:
    """The estimator of a search, which can train on the rows; warns of the Params that trials ignore.

    Raises:
        InvalidInput: it is of another kind, lacks validation rows, or cannot pause at the rungs.
    """
    estimator = tuner.getOrDefault("estimator") if tuner.isDefined("estimator") else None
    if not isinstance(estimator, DistributedEstimator):
        raise InvalidInput(
            f"estimator is {'not set' if estimator is None else f'a {type(estimator).__name__}'}; expected a "
            f"TorchClassifier, a TorchRegressor or a TorchEstimator.{_advice(estimator)}"
        )
    space = tuner.getOrDefault("paramSpace") if tuner.isDefined("paramSpace") else {}
    strategies = space.get("strategy", [estimator.getStrategy()])
    if len({is_algorithm(strategy) for strategy in strategies}) > 1:
        raise InvalidInput(
            "paramSpace has strategies of gangs and algorithms of rounds; expected one kind. Make a search for each."
        )
    estimator = estimator.copy()._set(strategy=strategies[0])
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
    pauses = tuner.getOrDefault("earlyTermination") is not None
    if pauses:
        _check_pauses(estimator, space)
    if estimator.getCheckpointInterval() == "never" and (pauses or tuner.getOrDefault("runDir") is not None):
        raise InvalidInput(
            "checkpointInterval is 'never', and trials continue from checkpoints. Set it to 'auto', or set "
            "earlyTermination=None and no runDir."
        )
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
        # The search replaces or uses these.
        for name in ("runDir", "trackers", "checkpointInterval", "monitor", "monitorMode"):
            quiet.clear(quiet.getParam(name))
        warn_of_ignored(quiet, "trials")


def _advice(estimator: object) -> str:
    if isinstance(estimator, Pipeline):
        return " Make the search the last stage of the pipeline: Pipeline(stages=[..., TorchTuner(...)])."
    if isinstance(estimator, CompositeEstimator):
        return " To compare ensembles, use BestOf(candidates=[...])."
    return ""
