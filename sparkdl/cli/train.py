"""Train a model on rows that Spark reads, and save it.

    spark-submit --py-files net.py jobs/train.py --config train.yaml --estimator.epochs 3

The configuration holds the arguments of ``train``; conf/train/digits.yaml is an example. ``--print_config`` prints it
resolved, ``--estimator.help sparkdl.TorchClassifier`` lists an estimator's arguments. A class or function is an import
path, or a ``class_path`` with ``init_args``.

The commands of rounds take an ``algorithm`` beside the estimator; conf/rounds has an example of each. Every round is
saved in the estimator's ``runDir``, and the same command resumes after the last saved round.

After SIGTERM, to the driver or to Spark's JVM, the command exits with 143 within 30 s. If the estimator has a
``runDir``, the workers first save a checkpoint, from which the same command resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cli.commands import COMMANDS
from sparkdl.cli.data import Data
from sparkdl.cli.saved_models import check_output, save
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator, TorchClassifier, TorchRegressor
from sparkdl.ml.evaluation import held_out
from sparkdl.ml.model import TorchModel
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.spark.jvm import forwarding_sigterm


def train(
    data: Data,
    estimator: DistributedEstimator,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train a model on rows that Spark reads, and save it.

    Args:
        data: the rows to train on.
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
        test: test rows, for the accuracy or, of a regressor, the root mean squared error; default: none.
        output: where to save the model; default: not saved.
        overwrite: replace an existing output.
    """
    if test is not None and not isinstance(estimator, TorchClassifier | TorchRegressor):
        raise InvalidInput("test is for a classifier or a regressor; mark rows for a loss with validationIndicatorCol.")
    with SparkSession.builder.getOrCreate() as spark, forwarding_sigterm(spark):
        check_output(spark, output, overwrite=overwrite)
        model = estimator.fit(data.read(spark))
        print(summary(model))
        save(model, output, overwrite=overwrite)
        if test is not None:
            label, prediction = str(estimator.getLabelCol()), estimator.getPredictionCol()
            predictions = model.transform(test.read(spark))
            print(held_out(predictions, label, prediction, classes=isinstance(estimator, TorchClassifier)))


def summary(model: TorchModel) -> str:
    """Summarize a training: rows, seconds, rounds, and the metrics of the last epoch or round."""
    last = model.history[-1] if model.history else {}  # a time budget may end before the first round
    kind = "epochs" if "epoch" in last else "rounds"
    named = ("loss", "objective", "primal", "dual")
    figures = [f"{name} {value:.4f}" for name, value in last.items() if name in named or name.startswith("valid_")]
    figures += [str(last["status"])] if "status" in last else []
    report, count = model.report, len(model.history)
    return f"trained on {report['rows']} rows in {report['seconds']:.1f} s, {count} {kind}: {', '.join(figures)}"


def by_rounds(kind: type, summary: str) -> Callable[..., None]:
    """Make the job that trains by an algorithm of the class ``kind``; its help begins with ``summary``."""

    def job(
        data: Data,
        estimator: DistributedEstimator,
        algorithm: Any,
        *,
        test: Data | None = None,
        output: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Train a model by rounds, and save it.

        Args:
            data: the rows to train on.
            estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
            algorithm: the algorithm's arguments.
            test: test rows, for the accuracy or, of a regressor, the root mean squared error; default: none.
            output: where to save the model; default: not saved.
            overwrite: replace an existing output.
        """
        train(data, estimator.setStrategy(algorithm), test, output, overwrite)

    job.__annotations__["algorithm"] = kind
    job.__doc__ = f"{summary}\n" + (job.__doc__ or "").partition("\n")[2]
    return job


parallel_sgd = by_rounds(ParallelSGD, COMMANDS["parallel_sgd"].summary)
admm = by_rounds(ConsensusADMM, COMMANDS["admm"].summary)
federated = by_rounds(FederatedAveraging, COMMANDS["federated"].summary)
lbfgs = by_rounds(LBFGS, COMMANDS["lbfgs"].summary)
