"""Train a model by federated averaging: clients train on rows of their own, which stay in their part.

    spark-submit --py-files net.py jobs/federated.py --config federated.yaml --algorithm.fraction 0.2

The configuration holds the arguments of ``federated``; conf/rounds/federated.yaml is an example. It is that of
jobs/train.py with an algorithm beside the estimator. Every round is saved in the estimator's ``runDir``, and the same
command goes on with the round after the last.
"""

from __future__ import annotations

import sys

from command import Data, main
from train import train

from sparkdl import FederatedAveraging
from sparkdl.ml.estimator import GangEstimator


def federated(
    data: Data,
    estimator: GangEstimator,
    algorithm: FederatedAveraging,
    *,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train a model by federated averaging: clients train on rows of their own, which stay in their part.

    Args:
        data: the rows to train on.
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
        algorithm: whose rows they are, how many clients train in a round, and how; its arguments.
        test: rows held out, on which the accuracy is printed, or for a regressor the root mean squared error.
        output: where the model is saved; nowhere if not given.
        overwrite: replace what is at output.
    """
    train(data, estimator.setStrategy(algorithm), test, output, overwrite)


if __name__ == "__main__":
    sys.exit(main(federated, stops=True))
