"""Train an ensemble on rows that Spark reads, and save its model.

    spark-submit --py-files net.py jobs/ensemble.py --config bagging.yaml --ensemble.numModels 20

The configuration holds the arguments of ``ensemble``; conf/ensemble has an example of each kind. The estimators of
members are class paths too, of this library or of pyspark.ml: ``base`` of a Bagging or Boosting, ``bases`` and ``meta``
of a Stacking, ``candidates`` and ``evaluator`` of a BestOf. If a configuration names an object of pyspark.ml, which
lives in the JVM, Spark starts before the arguments are checked, otherwise after.

Finished members are saved in the ensemble's ``runDir``, and the same command trains only the missing ones. After
SIGTERM, to the driver or to Spark's JVM, no further member begins, and the job exits with 143 within 30 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sparkdl.cli.data import Data
from sparkdl.cli.train import fit_and_save
from sparkdl.ensembles.base_learner import kind_of
from sparkdl.ensembles.params import EnsembleParams
from sparkdl.errors import InvalidInput


def ensemble(
    data: Data,
    ensemble: EnsembleParams,
    *,
    test: Data | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> None:
    """Train an ensemble on rows that Spark reads, and save its model.

    Args:
        data: the rows to train on.
        ensemble: sparkdl.Bagging, sparkdl.Boosting, sparkdl.Stacking or sparkdl.BestOf, with its arguments.
        test: test rows, for the accuracy or, for numbers, the root mean squared error; default: none.
        output: where to save the model; default: not saved.
        overwrite: replace an existing output.
    """
    bases = ensemble.bases()
    if test is not None and "estimator" in map(kind_of, bases):
        raise InvalidInput("test is for classes or numbers; the output of a sparkdl.TorchEstimator may be anything.")
    fit_and_save(
        ensemble,
        bases[0],
        lambda model: summary(model.report),
        data=data,
        test=test,
        output=output,
        overwrite=overwrite,
    )


def summary(report: dict[str, Any]) -> str:
    """Summarize a training: seconds, the members trained now, and those restored."""
    trained, restored = report["trained"], report["restored"]
    before = f"; finished before: {listed(restored)}" if restored else ""
    return f"{len(trained) + len(restored)} members in {report['seconds']:.1f} s, trained: {listed(trained)}{before}"


def listed(members: Sequence[int]) -> str:
    """Format numbers in ascending order; three or more in a row become a range."""
    numbered = enumerate(sorted(members))
    runs = [[member for _, member in group] for _, group in groupby(numbered, lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs) or "none"
