"""Evaluate a saved model on labelled rows.

    spark-submit --conf spark.sparkdl.modules=net --py-files net.py jobs/evaluate.py --model MODEL --data.path DATA

Metrics of a classifier: accuracy, macro F1, log loss, the confusion table and, for two classes, the area under the ROC
curve. Of independent labels: subset accuracy, micro F1, macro F1, and the accuracy and F1 of each. Of a regressor: root
mean squared error, mean absolute error and R2. Of a TorchEstimator: its loss and metrics. As in training, the job ships
the modules that define the model, and the setting trusts them.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cli import saved_models
from sparkdl.cli.data import Data, check_output
from sparkdl.ensembles.fitted import evaluate as measure
from sparkdl.io import files
from sparkdl.ml.evaluation import finite
from sparkdl.spark.jvm import qualify


def evaluate(
    *, model: str, data: Data, label: str | None = None, output: str | None = None, overwrite: bool = False
) -> None:
    """Evaluate a saved model on labelled rows.

    Args:
        model: the path of the saved model, of an estimator or an ensemble.
        data: the rows; those with a null label are left out.
        label: the column of the true classes or values; default: the model's labelCol.
        output: the JSON file of the metrics; default: not written.
        overwrite: replace an existing output.
    """
    with SparkSession.builder.getOrCreate() as spark:
        check_output(spark, output, overwrite=overwrite)
        trained = saved_models.load(spark, model)
        measured = measure(trained, data.read(spark), label)
        print(measured)
        if output is not None:
            figures: dict[str, Any] = {"model": model, "label": label, **measured.figures()}
            files.write(qualify(spark, output), json.dumps(finite(figures), indent=2).encode())
            print(f"wrote {output}")
