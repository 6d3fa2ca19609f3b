"""Train a model on rows that Spark reads, and save it.

    spark-submit --py-files net.py jobs/train.py --config conf/train/digits.yaml --estimator.epochs 3

The configuration has the arguments of ``train``. ``--print_config`` prints it resolved, ``--estimator.help
sparkdl.TorchClassifier`` what an estimator takes. Classes and functions are import paths: write ``class_path`` and
``init_args``. Exit codes: see ``command``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from command import Data, Parser, exit_code
from jsonargparse import Namespace
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.sql import DataFrame, SparkSession
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

from sparkdl import TorchClassifier, TorchModel, TorchRegressor, factory, files
from sparkdl.errors import InvalidInput
from sparkdl.ml.estimator import GangEstimator
from sparkdl.spark.resources import qualified


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
        estimator: sparkdl.TorchClassifier, sparkdl.TorchRegressor or sparkdl.TorchEstimator, and its arguments.
        test: rows held out; the accuracy on them is printed, for a regressor the root of the mean squared error.
        output: where the model is saved; not at all if not given.
        overwrite: replace what is at output.
    """
    with SparkSession.builder.appName("sparkdl train").getOrCreate() as spark:
        check(spark, estimator, test, None if overwrite else output)
        model = estimator.fit(data.read(spark))
        print(f"trained on {model.report['rows']} rows in {model.report['seconds']:.1f} s, {summary(model)}")
        if output is not None:
            writer = model.write()
            (writer.overwrite() if overwrite else writer).save(output)
            print(f"saved {output}")
        if test is not None:
            print(held_out(estimator, model.transform(test.read(spark))))
