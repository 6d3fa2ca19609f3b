"""Predict with a saved model.

    spark-submit --py-files net.py jobs/predict.py --model MODEL --data DATA --output PREDICTIONS --label label

The modules that the model's class comes from go with the job, as they did when it was trained.
"""

from __future__ import annotations

import sys

from command import Data, main
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType

from sparkdl import TorchModel
from sparkdl.errors import InvalidInput

MOST_CLASSES = 20  # of which a table fits a terminal


def predict(
    *,
    model: str,
    data: str,
    format: str = "parquet",  # noqa: A002 - it is the option's name
    options: dict[str, str | int | float | bool] | None = None,
    output: str | None = None,
    overwrite: bool = False,
    label: str | None = None,
) -> None:
    """Predict with a saved model.

    Args:
        model: where the model was saved.
        data: the rows, a file or folder on any filesystem that Spark reads.
        format: of the data, as Spark names it.
        options: for Spark's reader.
        output: where the rows and their predictions are written, as Parquet; nowhere if not given.
        overwrite: replace what is at output.
        label: the column of the true classes or values, to compare the predictions with.
    """
    if output is None and label is None:
        raise InvalidInput("there is nothing to do: give output, label or both.")
    with SparkSession.builder.getOrCreate() as spark:
        trained = TorchModel.load(model)
        rows = Data(data, format, options or {}).read(spark)
        if label is not None and label not in rows.columns:
            raise InvalidInput(f"label is {label!r}; expected one of the columns {', '.join(rows.columns)}.")
        predictions = trained.transform(rows)
        if output is not None:
            predictions.write.mode("overwrite" if overwrite else "errorifexists").parquet(output)
            print(f"wrote {output}")
            predictions = spark.read.parquet(output)  # what follows need not predict once more
        if label is not None:
            print(compared(trained, predictions, label))


def compared(model: TorchModel, predictions: DataFrame, label: str) -> str:
    """How the predictions compare with the true labels, of the rows that have one."""
    prediction = model.getPredictionCol()
    known = predictions.where(F.col(label).isNotNull())
    if model.getProbabilityCol() in predictions.columns:  # a classifier's model
        pairs = known.groupBy(F.col(label).cast("int"), F.col(prediction).cast("int")).count().collect()
        return scores({(true, predicted): count for true, predicted, count in pairs})
    if not isinstance(predictions.schema[prediction].dataType, NumericType):
        raise InvalidInput(f"{prediction} is the model's raw output, which cannot be compared with {label}.")
    evaluator = RegressionEvaluator(metricName="rmse", labelCol=label, predictionCol=prediction)
    return f"root mean squared error {evaluator.evaluate(known):.4g}"


def scores(counts: dict[tuple[int, int], int]) -> str:
    """Accuracy and confusion table as text, from the number of rows of each (label, prediction)."""
    rows, right = sum(counts.values()), sum(count for (true, found), count in counts.items() if true == found)
    text = f"accuracy {right / max(rows, 1):.4f} ({right} of {rows} rows)"
    classes = sorted({one for pair in counts for one in pair})
    if not 0 < len(classes) <= MOST_CLASSES:
        return f"{text}, {len(classes)} classes"
    width = 2 + max(len(str(number)) for number in (*classes, *counts.values()))
    table: list[list[object]] = [["", *classes]]
    table += [[true, *(counts.get((true, found), ".") for found in classes)] for true in classes]
    lines = ["".join(f"{cell:>{width}}" for cell in line) for line in table]
    return "\n".join([text, "", "confusion: a row for each label, a column for each prediction", *lines])


if __name__ == "__main__":
    sys.exit(main(predict))
