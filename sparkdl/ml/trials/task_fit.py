"""A fit in a Spark task: the rows are packed once for all tasks, and each trains alone, as a gang of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from sparkdl.cluster.tasks import TaskRunner
from sparkdl.io.weights_file import Weights
from sparkdl.ml.derived_columns.class_weights import ClassWeights
from sparkdl.ml.derived_columns.rows import ReadRows
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.fit_monitor import FitMonitor
from sparkdl.ml.fit_spec import FitResult
from sparkdl.ml.model import TorchModel
from sparkdl.spark.cluster import SparkCluster
from sparkdl.training.objective.module_factory import ModelFactory


@contextmanager
def packed_rows(
    read: ReadRows, estimator: DistributedEstimator, watch: FitMonitor | None, *, allow_unencrypted: bool
) -> Iterator[TaskRunner]:
    """Pack the rows, in their partitions, for tasks with the estimator's device and resources."""
    cluster = SparkCluster(
        read.frame.sparkSession,
        1,
        allow_unencrypted=allow_unencrypted,
        event_directory=None if watch is None else watch.event_log.folder,
        run_directory=None if watch is None else watch.run.directory,
        logs=estimator.getLogLevel(),
        title="sparkdl" if watch is None else watch.title,
        **estimator.settings("device", "taskCpus", "taskGpus"),
    )
    listener = None if watch is None or not estimator.getTelemetry() else watch.event_log
    with cluster.map_reduce(read.frame, read.columns, shuffle=False, listener=listener) as jobs:
        yield jobs


def model_of(
    estimator: DistributedEstimator,
    factory: ModelFactory | nn.Module,
    weights: Weights,
    state: Mapping[str, Any],
    class_weights: ClassWeights | None,
) -> TorchModel:
    """The model of a fit in a task, from its weights, and the ``history``, ``report`` and ``seconds`` of the task."""
    report = state["report"]
    names = ("train_seconds", "feed_wait_seconds", "rows", "best_epoch", "stop_reason", "keeps_best", "validation_rows")
    entries = {name: report[name] for name in names if name in report}  # stored members of 0.1 lack the last two
    entries |= {
        "device": estimator.getDevice(),
        "seconds": state["seconds"],
        "rows_per_second": state["history"][-1]["samples"] / max(report["train_seconds"], 1e-9),
        "bytes": 0,
        "restarts": 0,
        "workers": [1],
        **({} if class_weights is None else {"class_weights": class_weights}),
    }
    fitted = FitResult(weights, state["history"], entries, report["output"], report["inputs"])
    return estimator.make_model(fitted, factory)
