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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType

from sparkdl.data.columns import listed
from sparkdl.errors import InvalidInput
from sparkdl.ml.model import TorchModel
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.persistence.nested_params import within
from sparkdl.rounds import is_algorithm
from sparkdl.spark.columns import VECTORS
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import gpus_of_tasks
from sparkdl.training.objective.objective import OutputKind

Changed = TypeVar("Changed", bound=Params)

_ONE_CLASS = "ensembles expect members that predict one class or one number of a row, or the raw output of a model"


def leaf(base: Params) -> Params:
    """The predicting estimator or model; of a pipeline, its last stage.

    Of a fitted pipeline, return the last stage with a ``predictionCol``: a later stage may drop columns.
    """
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


def with_one_worker(base: Estimator[Any]) -> Estimator[Any]:
    """The base, or if networks in it train on gangs without ``numWorkers``, a copy with one worker each."""
    if not any(map(_lacks_workers, within(base))):
        return base
    copied = base.copy()
    for part in filter(_lacks_workers, within(copied)):
        cast(TrainingParams, part).setNumWorkers(1)
    return copied


def _lacks_workers(part: Params) -> bool:
    return isinstance(part, TrainingParams) and not is_algorithm(part.getStrategy()) and part.getNumWorkers() is None


def trains_in_task(base: Estimator[Any], spark: SparkSession) -> bool:
    """Whether a base trains in a Spark task by itself: a PyTorch one of one worker, without rounds.

    With ``device="cuda"``, only if Spark assigns GPUs to tasks: else the tasks of all slots would share few GPUs.

    Raises:
        InvalidInput: the base requests GPUs or cores that tasks cannot have.
    """
    if not isinstance(base, TrainingParams) or is_algorithm(base.getStrategy()):
        return False
    if base.getNumWorkers() not in (None, 1):
        return False
    device, cpus, gpus = task_settings(base)
    if device != "cuda":
        return True
    return gpus_of_tasks(spark, TaskResources.of_training(spark, device, cpus=cpus, gpus=gpus)) > 0


def task_settings(base: TrainingParams) -> tuple[str, int | None, float | None]:
    """The device of a base's tasks, and the cores and GPUs that each requests; the tasks of a job share them."""
    return base.getDevice(), base.getTaskCpus(), base.getTaskGpus()
