"""Saved models of every kind, and their output columns."""

from __future__ import annotations

from pyspark.ml import Model
from pyspark.sql import SparkSession

from sparkdl.errors import InvalidInput
from sparkdl.ml.persistence.reader_writer import load_saved
from sparkdl.ml.persistence.registry import Versions
from sparkdl.spark.jvm import qualify


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
