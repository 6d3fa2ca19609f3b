"""Evaluate a saved model on rows that have labels.

    spark-submit --py-files net.py jobs/evaluate.py --model MODEL --data.path DATA --output metrics.json

A classifier's figures are accuracy, macro F1, log loss, the confusion table and, of two classes, the area under the
ROC curve; a regressor's are the root mean squared error, the mean absolute error and R2. The modules that the model's
class comes from go with the job, as they did when it was trained.
"""

from __future__ import annotations

import json
from math import isfinite

from pyspark.sql import SparkSession

from sparkdl.cli import saved_models
from sparkdl.cli.data import Data
from sparkdl.io import files
from sparkdl.ml import evaluation
from sparkdl.spark.jvm import qualified


def evaluate(
    *,
    model: str,
    data: Data,
    label: str = "label",
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Evaluate a saved model on rows that have labels.

    Args:
        model: where the model was saved: of an estimator, or of an ensemble.
        data: the rows; those whose label is null are left out.
        label: the column of the true classes or values.
        output: the file that the figures are written to as JSON; nowhere if not given.
        overwrite: replace what is at output.
    """
    with SparkSession.builder.getOrCreate() as spark:
        saved_models.check_output(spark, output, overwrite=overwrite)
        trained = saved_models.load(spark, model)
        rows = data.read(spark)
        evaluation.check_label(rows, label)
        measured = evaluation.measure(trained.transform(rows), label, saved_models.output_columns(trained))
        print(measured.text())
        if output is not None:
            figures = {"model": model, "label": label, **measured.figures()}
            # JSON knows neither NaN nor infinity.
            lost = {name for name, each in figures.items() if isinstance(each, float) and not isfinite(each)}
            plain = figures | dict.fromkeys(lost)
            files.write(qualified(spark, output), json.dumps(plain, indent=2).encode())
            print(f"wrote {output}")
