"""Saved models of every kind, and their output columns."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Model, PipelineModel
from pyspark.ml.util import DefaultParamsReader
from pyspark.sql import SparkSession

from sparkdl.ensembles.base_learner import column
from sparkdl.ensembles.best_of import BestOfModel
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.stacking import StackingModel
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.evaluation import OutputColumns
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.registry import Versions
from sparkdl.spark.jvm import qualify

_KINDS: tuple[Any, ...] = (TorchModel, EnsembleModel, StackingModel, BestOfModel, PipelineModel)


def check_output(spark: SparkSession, output: str | None, *, overwrite: bool) -> None:
    """Check, before the work begins, that its result can be written.

    Raises:
        InvalidInput: output exists, and overwrite is false.
    """
    if output is not None and not overwrite and files.exists(qualify(spark, output)):
        raise InvalidInput(f"output {output} exists; set overwrite to true to replace it.")


def load(spark: SparkSession, path: str) -> Model:
    """Load the model of an estimator, an ensemble or a pipeline; from published versions, the one in use.

    Raises:
        InvalidInput: the path holds none of these.
    """
    versions = Versions(qualify(spark, path))
    try:
        current = versions.current()
    except NotADirectoryError:  # a file
        current = None
    if current is not None:
        path = versions.model(current)
    try:
        name = DefaultParamsReader.loadMetadata(path, spark)["class"]
    except Exception:  # Spark's errors for a missing path, and those of damaged JSON
        name = None  # the reader reports the error
    kinds: dict[str, Any] = {f"{kind.__module__}.{kind.__name__}": kind for kind in _KINDS}
    model: Model = kinds.get(name, TorchModel).load(path)
    return model


def output_columns(model: Model) -> OutputColumns:
    """The names of a model's output columns."""
    while isinstance(model, StackingModel | BestOfModel):
        model = model.meta if isinstance(model, StackingModel) else model.bestModel
    prediction, *others = (column(model, name) for name in ("predictionCol", "probabilityCol", "rawPredictionCol"))
    return OutputColumns(str(prediction), *others)
