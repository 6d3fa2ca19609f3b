"""Saved models of every kind, and their output columns."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Model
from pyspark.sql import SparkSession

from sparkdl.ensembles.base_learner import column, leaf
from sparkdl.ensembles.best_of import BestOfModel
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.stacking import StackingModel
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.evaluation import OutputColumns
from sparkdl.ml.persistence.reader_writer import load_saved
from sparkdl.ml.persistence.registry import Versions
from sparkdl.spark.jvm import qualify
from sparkdl.training.labels import IGNORED


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
        InvalidInput: the path holds none of these, or one that the session does not trust.
    """
    versions = Versions(qualify(spark, path))
    try:
        current = versions.current()
    except NotADirectoryError:  # a file
        current = None
    if current is not None:
        path = versions.model(current)
    model = load_saved(qualify(spark, path), spark)
    if not isinstance(model, Model):
        raise InvalidInput(f"{path} holds a {type(model).__name__}; expected a fitted model.")
    return model


def output_columns(model: Model) -> OutputColumns:
    """The names of a model's output columns, and the label that it ignores."""
    while isinstance(model, StackingModel | BestOfModel):
        model = model.meta if isinstance(model, StackingModel) else model.bestModel
    names = [column(model, name) for name in ("predictionCol", "probabilityCol", "rawPredictionCol")]
    member: Any = leaf(model)
    while isinstance(member, EnsembleModel):
        member = leaf(member.models[0])
    return OutputColumns(str(names[0]), names[1], names[2], getattr(member, "ignoredLabel", IGNORED))
