"""Train a model on rows that Spark reads, and save it.

    spark-submit --py-files net.py jobs/train.py --config train.yaml --estimator.epochs 3

The configuration holds the arguments of ``train``; conf/train/digits.yaml is an example. ``--print_config`` prints it
resolved, ``--estimator.help sparkdl.TorchClassifier`` lists an estimator's arguments. A class or function is an import
path, or a ``class_path`` with ``init_args``.

The commands of rounds take an ``algorithm`` beside the estimator; conf/rounds has an example of each. Every round is
saved in the estimator's ``runDir``, and the same command resumes after the last saved round.

After SIGTERM, to the driver or to Spark's JVM, the command exits with 143 within 30 s. If the estimator has a
``runDir``, the workers first save a checkpoint. The message says of which step the newest checkpoint is, or that there
is none; the same command resumes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cli.commands import COMMANDS
from sparkdl.cli.data import Data
from sparkdl.cli.saved_models import check_output, output_columns
from sparkdl.ensembles.base_learner import column, kind_of
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.evaluation import held_out
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.spark.jvm import forwarding_sigterm
from sparkdl.spark.warm_up import warm_up


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
    bases: list[Any] = estimator.bases() if isinstance(estimator, EnsembleParams) else [estimator]
    if test is not None and "estimator" in map(kind_of, bases):
        raise InvalidInput("test is for classifiers and regressors; for other models, set validationIndicatorCol.")
    with SparkSession.builder.getOrCreate() as spark, forwarding_sigterm(spark):
        check_output(spark, output, overwrite=overwrite)
        warm_up(spark)
        model = estimator.fit(data.read(spark))
        print(summary(model))
        if output is not None:
            (model.write().overwrite() if overwrite else model.write()).save(output)
            print(f"saved {output}")
        if test is not None:
            if getattr(model, "predictsArrays", False):
                print(model.evaluate(test.read(spark)).text())
                return
            label, predictions = str(column(bases[0], "labelCol")), model.transform(test.read(spark))
            print(held_out(predictions, label, output_columns(model), classes=kind_of(bases[0]) == "classifier"))


def summary(model: Any) -> str:
    """Summarize a training: rows, seconds, rounds, and the last metrics; of an ensemble, the members trained now."""
    report, history = model.report, model.history
    if "trained" in report:
        trained, restored = report["trained"], report["restored"]
        before = f"; finished before: {listed(restored)}" if restored else ""
        members = len(trained) + len(restored)
        score = f"; out-of-bag score {report['oob_score']:.4f}" if report.get("oob_score") is not None else ""
        return f"{members} members in {report['seconds']:.1f} s, trained: {listed(trained)}{before}{score}"
    last = history[-1] if history else {}  # a time budget may end before the first round
    kind = "epochs" if "epoch" in last else "rounds"
    named = ("loss", "objective", "primal", "dual")
    figures = [f"{name} {value:.4f}" for name, value in last.items() if name in named or name.startswith("valid_")]
    figures += [str(last["status"])] if "status" in last else []
    return f"trained on {report['rows']} rows in {report['seconds']:.1f} s, {len(history)} {kind}: {', '.join(figures)}"


def listed(members: Sequence[int]) -> str:
    """Format numbers in ascending order; three or more in a row become a range."""
    numbered = enumerate(sorted(members))
    runs = [[member for _, member in group] for _, group in groupby(numbered, lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs) or "none"


def by_rounds(name: str, kind: type) -> Callable[..., None]:
    """Make the job ``name``, which trains by an algorithm of the class ``kind``."""

    def job(data: Data, estimator: DistributedEstimator, algorithm: Any, **options: Any) -> None:
        train(data, estimator.setStrategy(algorithm), **options)

    job.__annotations__["algorithm"] = kind
    arguments = (train.__doc__ or "").partition("\n")[2]
    algorithm = "        algorithm: the algorithm's arguments.\n        test:"
    job.__doc__ = f"{COMMANDS[name].summary}\n{arguments.replace('        test:', algorithm)}"
    return job


parallel_sgd = by_rounds("parallel_sgd", ParallelSGD)
admm = by_rounds("admm", ConsensusADMM)
federated = by_rounds("federated", FederatedAveraging)
lbfgs = by_rounds("lbfgs", LBFGS)
