"""Train a model by Parallel SGD: parts train alone, and their weights are averaged.

    spark-submit --py-files net.py jobs/parallel_sgd.py --config parallel_sgd.yaml --algorithm.rounds 20

The configuration holds the arguments of ``parallel_sgd``; conf/rounds/parallel_sgd.yaml is an example. It is that of
jobs/train.py with an algorithm beside the estimator. Every round is saved in the estimator's ``runDir``, and the same
command goes on with the round after the last.
"""

from __future__ import annotations

import sys

from command import Data, main
from train import train

from sparkdl import ParallelSGD
from sparkdl.ml.estimator import GangEstimator


def parallel_sgd(
    data: Data,
    estimator: GangEstimator,
    algorithm: ParallelSGD,
    *,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train a model by Parallel SGD: parts train alone, and their weights are averaged.

    Args:
        data: the rows to train on.
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
        algorithm: how often weights are averaged, and how a part trains; its arguments.
        test: rows held out, on which the accuracy is printed, or for a regressor the root mean squared error.
        output: where the model is saved; nowhere if not given.
        overwrite: replace what is at output.
    """
    train(data, estimator.setStrategy(algorithm), test, output, overwrite)


if __name__ == "__main__":
    sys.exit(main(parallel_sgd, stops=True))
