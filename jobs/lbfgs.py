"""Train a model by L-BFGS over all rows: every round is one evaluation of the loss and its gradient.

    spark-submit --py-files net.py jobs/lbfgs.py --config lbfgs.yaml --algorithm.l2 0.001

The configuration holds the arguments of ``lbfgs``; conf/rounds/lbfgs.yaml is an example. It is that of
jobs/train.py with an algorithm beside the estimator. Every round is saved in the estimator's ``runDir``, and the same
command goes on with the round after the last.
"""

from __future__ import annotations

import sys

from command import Data, main
from train import train

from sparkdl import LBFGS
from sparkdl.ml.estimator import GangEstimator


def lbfgs(
    data: Data,
    estimator: GangEstimator,
    algorithm: LBFGS,
    *,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train a model by L-BFGS over all rows: every round is one evaluation of the loss and its gradient.

    Args:
        data: the rows to train on.
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
        algorithm: the L2 penalty, and when it is over; its arguments.
        test: rows held out, on which the accuracy is printed, or for a regressor the root mean squared error.
        output: where the model is saved; nowhere if not given.
        overwrite: replace what is at output.
    """
    train(data, estimator.setStrategy(algorithm), test, output, overwrite)


if __name__ == "__main__":
    sys.exit(main(lbfgs, stops=True))
