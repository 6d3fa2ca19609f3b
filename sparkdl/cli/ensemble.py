"""Train an ensemble on rows that Spark reads, and save it.

    spark-submit --py-files net.py jobs/ensemble.py --config bagging.yaml --ensemble.numModels 20

The configuration holds the arguments of ``ensemble``; conf/ensemble has an example of each kind. The estimators of
members are class paths too, of this library or of pyspark.ml: ``base`` of a Bagging or Boosting, ``bases`` and ``meta``
of a Stacking, ``candidates`` and ``evaluator`` of a BestOf. If a configuration names an object of pyspark.ml, which
lives in the JVM, Spark starts before the arguments are checked, otherwise after.

Finished members are saved in the ensemble's ``runDir``, and the same command trains only the missing ones. After
SIGTERM, to the driver or to Spark's JVM, no further member begins, and the job exits with 143 within 30 s.
"""

from __future__ import annotations

from typing import Any

from sparkdl.cli.data import Data
from sparkdl.cli.train import train
from sparkdl.ensembles.params import EnsembleParams


def ensemble(data: Data, ensemble: EnsembleParams, **options: Any) -> None:
    """Train an ensemble on rows that Spark reads, and save it.

    Args:
        data: the rows to train on.
        ensemble: sparkdl.Bagging, sparkdl.Boosting, sparkdl.Stacking or sparkdl.BestOf, with its arguments.
        options: test, output and overwrite, as of `sparkdl.cli.train.train`.
    """
    estimator: Any = ensemble  # every EnsembleParams here is also an Estimator
    train(data, estimator, **options)
