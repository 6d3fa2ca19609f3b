"""Train a model by consensus ADMM: parts have weights of their own, which are drawn together.

    spark-submit --py-files net.py jobs/admm.py --config admm.yaml --algorithm.rho 0.5

The configuration holds the arguments of ``admm``; conf/rounds/admm.yaml is an example. It is that of
jobs/train.py with an algorithm beside the estimator. Every round is saved in the estimator's ``runDir``, and the same
command goes on with the round after the last.
"""

from __future__ import annotations

import sys

from command import Data, main
from train import train

from sparkdl import ConsensusADMM
from sparkdl.ml.estimator import GangEstimator


def admm(
    data: Data,
    estimator: GangEstimator,
    algorithm: ConsensusADMM,
    *,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train a model by consensus ADMM: parts have weights of their own, which are drawn together.

    Args:
        data: the rows to train on.
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, with its arguments.
        algorithm: the penalties, and how a part solves its own problem; its arguments.
        test: rows held out, on which the accuracy is printed, or for a regressor the root mean squared error.
        output: where the model is saved; nowhere if not given.
        overwrite: replace what is at output.
    """
    train(data, estimator.setStrategy(algorithm), test, output, overwrite)


if __name__ == "__main__":
    sys.exit(main(admm, stops=True))
