"""Predict with a saved model.

    spark-submit --conf spark.sparkdl.modules=net --py-files net.py jobs/predict.py --model MODEL --data.path DATA

As in training, the job ships the modules that define the model, and the setting trusts them.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from sparkdl.cli import saved_models
from sparkdl.cli.data import Data
from sparkdl.ensembles.fitted import output_columns
from sparkdl.errors import InvalidInput
from sparkdl.ml import evaluation


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
    with SparkSession.builder.getOrCreate() as spark:
        trained = saved_models.load(spark, model)
        rows = data.read(spark)
        if label is not None:
            evaluation.check_label(rows, label)
        predictions = trained.transform(rows)
        if output is not None:
            predictions.write.mode("overwrite" if overwrite else "errorifexists").parquet(output)
            print(f"wrote {output}")
            predictions = spark.read.parquet(output)  # so that predictions are not computed again
        if label is not None:
            print(evaluation.measure(predictions, label, output_columns(trained)))
