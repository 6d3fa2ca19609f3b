"""What members are known by is the same in another process."""

from __future__ import annotations

from pyspark.ml import Estimator
from pyspark.ml.param.shared import HasMaxIter, HasSeed

from sparkdl.ensembles.identity import configuration


class Seeded(Estimator, HasSeed, HasMaxIter):
    """As those of pyspark.ml, whose seed is by default a hash of the class's name, another one in each process."""

    def _fit(self, dataset):
        raise NotImplementedError


def told(base):
    return configuration(Seeded()._set(maxIter=3), [base], "2 rows")


def test_a_seed_that_nobody_has_given_does_not_count():
    base = Seeded()
    assert base.isDefined("seed")
    assert told(base) == {"ensemble": "Seeded", "rows": "2 rows", "maxIter": "3", "base 0": {"class": "Seeded"}}


def test_a_seed_that_was_given_counts():
    assert told(Seeded()._set(seed=7))["base 0"] == {"class": "Seeded", "seed": "7"}
