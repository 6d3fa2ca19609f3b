"""Queries and copies of base estimators, independent of their library.

A base is a PyTorch estimator of sparkdl, an estimator of pyspark.ml or of a library with its conventions, such as
xgboost.spark, or a ``Pipeline`` that ends in one. Of a pipeline, the functions query and change the last stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pyspark.ml import Estimator, Pipeline, PipelineModel
from pyspark.ml.classification import Classifier
from pyspark.ml.param import Params
from pyspark.ml.regression import Regressor
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.model import TorchModel
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.trials.composite import CompositeModel
from sparkdl.spark.columns import VECTORS
from sparkdl.training.objective.objective import OutputKind

Changed = TypeVar("Changed", bound=Params)

_ONE_CLASS = "ensembles expect members that predict one class or one number of a row, or the raw output of a model"


def leaf(base: Params) -> Params:
    """The predicting estimator or model; of a pipeline, its last stage.

    Of a fitted pipeline, return the last stage with a ``predictionCol``: a later stage may drop columns.
    """
    if isinstance(base, CompositeModel) and base.predictor is not None:
        return leaf(getattr(base, base.predictor))
    if isinstance(base, PipelineModel):
        return next((stage for stage in map(leaf, reversed(base.stages)) if stage.hasParam("predictionCol")), base)
    if not isinstance(base, Pipeline):
        return base
    stages = base.getStages()
    if not stages or not isinstance(stages[-1], Estimator):
        raise InvalidInput(f"the pipeline {base.uid} does not end in an estimator; expected one that predicts.")
    return leaf(stages[-1])


def kind_of(base: Estimator[Any]) -> OutputKind:
    """Prediction type of a base; raises InvalidInput if the base is no estimator or does not predict."""
    if not isinstance(base, Estimator):
        raise InvalidInput(f"base is {base!r}; expected a pyspark.ml Estimator, such as TorchClassifier(...).")
    last: Any = leaf(base)
    if isinstance(last, TrainingParams):
        return cast(OutputKind, last._kind)  # type: ignore[attr-defined]
    if isinstance(last, Classifier) or last.hasParam("probabilityCol") or last.hasParam("rawPredictionCol"):
        return "classifier"
    if isinstance(last, Regressor) or last.hasParam("predictionCol"):
        return "regressor"
    raise InvalidInput(f"base is a {type(last).__name__}, which has no predictionCol; expected one that predicts.")


def check_one_class(bases: Sequence[Estimator[Any]], dataset: DataFrame) -> None:
    """Raise InvalidInput if a base predicts several labels of a row: members vote for one class, or have one number."""
    for base in bases:
        last: Any = leaf(base)
        kind = kind_of(base) if isinstance(last, TrainingParams) else "estimator"
        label = column(base, "labelCol")
        arrays = label in dataset.columns and isinstance(dataset.schema[str(label)].dataType, (ArrayType, *VECTORS))
        if kind == "multilabel":
            raise InvalidInput(f"the base {base.uid} has multiLabel=True; {_ONE_CLASS}.")
        if kind == "classifier" and arrays:
            raise InvalidInput(f"label column {label!r} of the base {base.uid} has arrays; {_ONE_CLASS}.")


def check_member(name: str, model: Params) -> None:
    """Raise InvalidInput if a fitted classifier predicts several labels of a row; ``name`` is the member's."""
    last: Any = leaf(model)
    if isinstance(last, TorchModel) and last.predictsArrays:
        raise InvalidInput(f"{name} predicts an array of labels; {_ONE_CLASS}.")


def value_of(base: Params, name: str) -> Any:
    """Value of a Param of a base or a model, or its default; None without both."""
    last = leaf(base)
    return last.getOrDefault(name) if last.hasParam(name) and last.isDefined(name) else None


def column(base: Params, name: str) -> str | None:
    """Column name in a Param such as ``"labelCol"`` of a base or a model; None if unset, empty or no string."""
    value = value_of(base, name)
    return value if isinstance(value, str) and value else None


def check_column(dataset: DataFrame, param: str, name: str, advice: str = "") -> None:
    """Raise InvalidInput if the data has no column that a Param names."""
    if name not in dataset.columns:
        raise InvalidInput(f"{param} is {name!r}; the data has {listed(dataset.columns)}.{advice}")


def changed(base: Changed, **values: Any) -> Changed:
    """A copy of a base or a model with new values for Params of its last stage; unknown Params are ignored."""
    last = leaf(base)
    return base.copy({last.getParam(name): value for name, value in values.items() if last.hasParam(name)})
