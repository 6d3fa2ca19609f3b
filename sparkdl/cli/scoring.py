"""Predict with a saved model, and evaluate one on labelled rows.

    spark-submit --conf spark.sparkdl.modules=net --py-files net.py jobs/predict.py --model MODEL --data.path DATA

As in training, the job ships the modules that define the model, and the setting trusts them.

Metrics of a classifier: accuracy, macro F1, log loss, the confusion table and, for two classes, the area under the ROC
curve. Of independent labels: subset accuracy, micro F1, macro F1, and the accuracy and F1 of each. Of a regressor: root
mean squared error, mean absolute error and R2. Of a TorchEstimator: its loss and metrics.
"""

from __future__ import annotations

import json

from pyspark.ml import Model
from pyspark.sql import SparkSession

from sparkdl.cli.data import Data, check_output
from sparkdl.cli.session import stopped_session
from sparkdl.ensembles import fitted
from sparkdl.ensembles.base_learner import value_of
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml import evaluation
from sparkdl.ml.persistence.reader_writer import load_saved
from sparkdl.ml.persistence.registry import Versions
from sparkdl.spark.session import qualify


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


def predict(
    *, model: str, data: Data, output: str | None = None, overwrite: bool = False, label: str | None = None
) -> None:
    """Predict with a saved model.

    Args:
        model: the path of the saved model, of an estimator or an ensemble.
        data: the rows.
        output: where to write the rows and their predictions, as Parquet; default: not written.
        overwrite: replace an existing output.
        label: the column of the true classes or values, to compare the predictions with.
    """
    if output is None and label is None:
        raise InvalidInput("there is nothing to do: give output, label or both.")
    with stopped_session() as spark:
        trained = load(spark, model)
        rows = data.read(spark)
        if label is not None:
            evaluation.check_label(rows, label)
        predictions = trained.transform(rows)
        if output is not None:
            predictions.write.mode("overwrite" if overwrite else "error").parquet(output)
            print(f"wrote {output}")
            predictions = spark.read.parquet(output)  # so that predictions are not computed again
        if label is not None:
            print(evaluation.measure(predictions, label, fitted.output_columns(trained)))


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
    with stopped_session() as spark:
        check_output(spark, output, overwrite=overwrite)
        trained = load(spark, model)
        metrics = fitted.evaluate(trained, data.read(spark), label)
        print(metrics)
        if output is not None:
            about = {"model": model, "label": label or value_of(trained, "labelCol")}
            figures = evaluation.finite(about | metrics.figures())
            files.write(qualify(spark, output), json.dumps(figures, indent=2).encode())
            print(f"wrote {output}")
