"""Saved models of every kind, and the columns that they write."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Model, PipelineModel
from pyspark.ml.param import Params
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession

from sparkdl import BestOfModel, EnsembleModel, StackingModel, TorchModel
from sparkdl.ensembles.base_learner import column, leaf
from sparkdl.ml.persistence.registry import Versions
from sparkdl.spark.jvm import qualified

_KINDS: tuple[Any, ...] = (TorchModel, EnsembleModel, StackingModel, BestOfModel, PipelineModel)


def load(spark: SparkSession, path: str) -> Model:
    """A saved model: a TorchModel, that of an ensemble or of a pipeline; of published versions the one in use.

    Raises:
        InvalidInput: the path holds none of these.
    """
    versions = Versions(qualified(spark, path))
    try:
        current = versions.current()
    except NotADirectoryError:  # a file
        current = None
    if current is not None:
        path = versions.model(current)
    try:
        saved = DefaultParamsReader.loadMetadata(path, spark)["class"]
    except Exception:  # Spark's own, for a path that is not there, and what damaged JSON gives
        saved = None  # the reader says what is wrong
    kind = next((each for each in _KINDS if saved == f"{each.__module__}.{each.__name__}"), TorchModel)
    loaded: Model = kind.load(path)
    return loaded


def output(model: Model, param: str) -> str | None:
    """The name of a column that a model writes, such as that of ``"predictionCol"``; None for none."""
    return column(_last(model), param)


def _last(model: Model) -> Params:
    """What writes the columns of a model."""
    if isinstance(model, StackingModel):
        return _last(model.meta)
    if isinstance(model, BestOfModel):
        return _last(model.bestModel)
    return leaf(model)
