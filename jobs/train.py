"""Train a model on rows that Spark reads, and save it.

    spark-submit --py-files net.py jobs/train.py --config train.yaml --estimator.epochs 3

The configuration holds the arguments of ``train``; conf/train/digits.yaml is an example. ``--print_config`` prints it
resolved, ``--estimator.help sparkdl.TorchClassifier`` says what an estimator takes. A class or function is an import
path, or a ``class_path`` with ``init_args``.

On SIGTERM, to the driver or to Spark's JVM, the members save a checkpoint, if the estimator has a ``runDir``, and
the job exits with 143 within 30 s. The same command goes on from there.
"""

from __future__ import annotations

import sys

from command import Data, main
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.sql import DataFrame, SparkSession

from sparkdl import TorchClassifier, TorchModel, TorchRegressor
from sparkdl.errors import InvalidInput
from sparkdl.io import files
from sparkdl.ml.estimator import GangEstimator
from sparkdl.spark.jvm import forwarding_sigterm, qualified


def train(
    data: Data,
    estimator: GangEstimator,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train a model on rows that Spark reads, and save it.

    Args:
        data: the rows to train on.
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
        test: rows held out, on which the accuracy is printed, or for a regressor the root mean squared error.
        output: where the model is saved; nowhere if not given.
        overwrite: replace what is at output.
    """
    if test is not None and not isinstance(estimator, TorchClassifier | TorchRegressor):
        raise InvalidInput("test is for a classifier or a regressor; mark rows for a loss with validationCol.")
    with SparkSession.builder.getOrCreate() as spark, forwarding_sigterm(spark):
        if output is not None:
            check_output(spark, output, estimator, overwrite=overwrite)
        model = estimator.fit(data.read(spark))
        print(summary(model))
        if output is not None:
            (model.write().overwrite() if overwrite else model.write()).save(output)
            print(f"saved {output}")
        if test is not None:
            print(held_out(estimator, model.transform(test.read(spark))))


def check_output(spark: SparkSession, output: str, estimator: GangEstimator, *, overwrite: bool) -> None:
    """Refuse before the training what could not be saved after it."""
    if not overwrite and files.exists(qualified(spark, output)):
        raise InvalidInput(f"output {output} exists; set overwrite to true to replace it.")


def summary(model: TorchModel) -> str:
    """What the training took, and the last epoch's or round's figures."""
    last = model.history[-1] if model.history else {}  # of a time budget that was over before the first round
    kind = "epochs" if "epoch" in last else "rounds"
    named = ("loss", "objective", "primal", "dual")
    figures = [f"{name} {value:.4f}" for name, value in last.items() if name in named or name.startswith("valid_")]
    figures += [str(last["status"])] if "status" in last else []
    report, count = model.report, len(model.history)
    return f"trained on {report['rows']} rows in {report['seconds']:.1f} s, {count} {kind}: {', '.join(figures)}"


def held_out(estimator: GangEstimator, predictions: DataFrame) -> str:
    """How good the predictions are."""
    label, prediction = str(estimator.getLabelCol()), estimator.getPredictionCol()
    if isinstance(estimator, TorchClassifier):
        classes = MulticlassClassificationEvaluator(metricName="accuracy", labelCol=label, predictionCol=prediction)
        return f"held-out accuracy {classes.evaluate(predictions):.4f}"
    numbers = RegressionEvaluator(metricName="rmse", labelCol=label, predictionCol=prediction)
    return f"held-out root mean squared error {numbers.evaluate(predictions):.4g}"


if __name__ == "__main__":
    sys.exit(main(train, stops=True))
