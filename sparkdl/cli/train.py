"""Train a model or an ensemble on rows that Spark reads, and save it.

    spark-submit --py-files net.py jobs/train.py --config train.yaml --estimator.epochs 3

The configuration holds the arguments of ``train``; conf/train/digits.yaml is an example. ``--print_config`` prints it
resolved, ``--estimator.help sparkdl.TorchClassifier`` lists an estimator's arguments. A class or function is an import
path, or a ``class_path`` with ``init_args``.

The commands of rounds take an ``algorithm`` beside the estimator; conf/rounds has an example of each. Every round is
saved in the estimator's ``runDir``, and the same command resumes after the last saved round.

The configuration of ``ensemble`` holds the ensemble's arguments; conf/ensemble has an example of each kind. The
estimators of members are class paths too, of this library or of pyspark.ml: ``base`` of a Bagging or Boosting,
``bases`` and ``meta`` of a Stacking, ``candidates`` and ``evaluator`` of a BestOf. If a configuration names an object
of pyspark.ml, which lives in the JVM, Spark starts before the arguments are checked, otherwise after. Finished members
are saved in the ensemble's ``runDir``, and the same command trains only the missing ones.

The configuration of ``tune`` holds the arguments of a TorchTuner; conf/tune/adult.yaml is an example. A range of its
``paramSpace`` is a mapping, as in ``{low: 1.e-4, high: 0.1, log: true}``. The same command continues the search in the
tuner's ``runDir``.

After SIGTERM, to the driver or to Spark's JVM, the command exits with 143 within 30 s. If the estimator has a
``runDir``, the workers first save a checkpoint. The message says of which step the newest checkpoint is, or that there
is none; the same command resumes from it. Of an ensemble, no further member begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkdl.cli.commands import COMMANDS
from sparkdl.cli.data import Data, check_output
from sparkdl.cli.session import stopped_session
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.tuning.tuner import TorchTuner
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.spark.session import forwarding_sigterm
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
        test: test rows, for the metrics of the model; default: none.
        output: where to save the model; default: not saved.
        overwrite: replace an existing output.
    """
    with stopped_session() as spark, forwarding_sigterm(spark):
        check_output(spark, output, overwrite=overwrite)
        warm_up(spark)
        model = estimator.fit(data.read(spark))
        print(model.summary)
        if output is not None:
            (model.write().overwrite() if overwrite else model.write()).save(output)
            print(f"saved {output}")
        if test is not None:
            print(f"held-out {model.evaluate(test.read(spark))}")


def ensemble(data: Data, ensemble: EnsembleParams, **options: Any) -> None:
    """Train an ensemble on rows that Spark reads, and save it.

    Args:
        data: the rows to train on.
        ensemble: sparkdl.Bagging, sparkdl.Boosting, sparkdl.Stacking or sparkdl.BestOf, with its arguments.
        options: test, output and overwrite, as of ``train``.
    """
    estimator: Any = ensemble  # every EnsembleParams here is also an Estimator
    train(data, estimator, **options)


def tune(data: Data, tuner: TorchTuner, **options: Any) -> None:
    """Search hyperparameters on rows that Spark reads, and save the model.

    Args:
        data: the rows to train on, with validation rows by the estimator's validationFraction or column.
        tuner: sparkdl.TorchTuner, with its estimator and its space.
        options: test, output and overwrite, as of ``train``.
    """
    estimator: Any = tuner
    train(data, estimator, **options)


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
