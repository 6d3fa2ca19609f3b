"""The Params of ``TorchTuner``, each declared once.

``make stubs`` writes the generated accessors and constructor to ``params.pyi``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Param
from pyspark.ml.param.shared import HasSeed

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.param_declaration import ConstructedParams, Scope, param
from sparkdl.ml.param_types import (
    by_value,
    checked,
    number,
    to_amount,
    to_boolean,
    to_count,
    to_estimator,
    to_list,
    to_path,
    to_seed,
)
from sparkdl.ml.tuning.number_range import Range
from sparkdl.ml.tuning.successive_halving import SuccessiveHalving
from sparkdl.ml.tuning.trial import SAMPLERS

# They change how many trials run, and how, but not what a trial's number trains.
_SAME_TRIALS = Scope.FITS | Scope.MEMBERS


def _named(space: Any) -> Any:
    if not isinstance(space, Mapping):
        return space
    named = {getattr(key, "name", key): value for key, value in space.items()}
    if len(named) < len(space):
        raise InvalidInput(
            f"paramSpace has a Param and its name: {listed([*map(str, space)])}; expected each key once."
        )
    return named


_to_space = checked(
    lambda value: isinstance(value, dict), "a dict of lists and ranges by hyperparameter", by_value(_named)
)


class TunerParams(ConstructedParams, HasSeed):
    """The Params of a search."""

    estimator: Param[Estimator[Any]] = param(
        "TorchClassifier, TorchRegressor or TorchEstimator with validation rows; trials compare its monitor",
        to_estimator,
    )
    paramSpace: Param[dict[Any, Range | list[Any] | dict[str, Any]]] = param(
        "values of each hyperparameter, a list or a Range. A key is a Param or its name, or an argument of modelArgs, "
        "optimizerArgs or strategy after a dot, such as 'modelArgs.hidden'",
        _to_space,
    )
    numTrials: Param[int] = param("number of trials; a grid has all its combinations", to_count, 20, _SAME_TRIALS)
    sampler: Param[str | Callable[[int], Any]] = param(
        "what draws the values: 'grid', 'random', 'tpe', 'gp' (Gaussian process), or a function of a seed that returns "
        "a sampler of Optuna",
        checked(
            lambda value: value in SAMPLERS if isinstance(value, str) else callable(value),
            f"one of {', '.join(SAMPLERS)}, or a function of a seed that returns a sampler of Optuna",
        ),
        "tpe",
    )
    earlyTermination: Param[SuccessiveHalving | None] = param(
        "which trials continue beyond a few epochs; None trains every trial to its end",
        checked(lambda value: isinstance(value, SuccessiveHalving), "a SuccessiveHalving, or None"),
        SuccessiveHalving(),
    )
    parallelism: Param[int | None] = param(
        "number of trials at a time; with None the slots divided by the estimator's numWorkers, and for a sampler that "
        "learns at most a quarter of numTrials",
        to_count,
        scope=_SAME_TRIALS,
    )
    maxSeconds: Param[float | None] = param(
        "seconds after which no trial begins or continues at its next rung; None sets no limit",
        number(float | None, to_amount),
        scope=_SAME_TRIALS,
    )
    seed: Param[int] = param("seed of the suggestions; all trials train with the estimator's own seed", to_seed, 0)
    runDir: Param[str | None] = param(
        "directory of the trials, from which the same search continues; a path or URI that executors see too. With "
        "None a temporary directory of the driver serves, if executors see it",
        to_path,
        scope=_SAME_TRIALS | Scope.PIPELINE,
    )
    trackers: Param[list[Any]] = param(
        "objects with any of on_start, on_epoch, on_end(run), called on the driver, such as MLflow()",
        to_list,
        [],
        _SAME_TRIALS,
    )
    telemetry: Param[bool] = param("whether the search saves events for its report", to_boolean, True, _SAME_TRIALS)
