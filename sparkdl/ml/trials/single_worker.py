"""Estimators that train on one worker: in a Spark task by themselves, or on a gang of one."""

from __future__ import annotations

import warnings
from typing import Any, cast

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import SparkSession

from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.param_declaration import Scope
from sparkdl.ml.params import TrainingParams
from sparkdl.ml.persistence.nested_params import within
from sparkdl.rounds import is_algorithm
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import gpus_of_tasks


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


def warn_of_ignored(estimator: DistributedEstimator, what: str) -> None:
    """Warn of set Params that ``what``, such as ``"members"``, ignore if they train in tasks."""
    for name in estimator.changed_from_default(estimator.names_outside(Scope.TASK)):
        warnings.warn(
            f"{name} is {estimator.getOrDefault(name)!r}; {what} that train in tasks ignore it.", stacklevel=7
        )
    estimator.warn_of_ignored()
