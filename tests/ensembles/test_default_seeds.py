"""What members are known by is the same in another process."""

from __future__ import annotations

from pyspark.ml import Estimator, Pipeline
from pyspark.ml.param.shared import HasMaxIter, HasSeed

from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.identity import configuration


class Seeded(Estimator, HasSeed, HasMaxIter):
    """As those of pyspark.ml, whose seed is by default a hash of the class's name, another one in each process."""

    def _fit(self, dataset):
        raise NotImplementedError


A, B = Seeded()._set(seed=7), Seeded()


def told(base):
    return configuration(Seeded()._set(maxIter=3), [base], "2 rows")


def test_a_seed_that_nobody_has_given_does_not_count():
    base = Seeded()
    assert base.isDefined("seed")
    assert told(base) == {"ensemble": "Seeded", "rows": "2 rows", "maxIter": "3", "base 0": {"class": "Seeded"}}


def test_a_seed_that_was_given_counts_where_members_do_not_replace_it():
    assert told(Seeded()._set(seed=7)) == told(Seeded()._set(seed=8)) == told(Seeded())
    earlier, last = (told(Pipeline(stages=stages))["base 0"]["stages"] for stages in ([A, B], [B, A]))
    assert (earlier["0"], earlier["1"]) == ({"class": "Seeded", "seed": "7"}, {"class": "Seeded"})
    assert last == {"0": {"class": "Seeded"}, "1": {"class": "Seeded"}}


def test_bases_of_ensembles_that_are_bases_are_given_seeds_as_well():
    assert told(Bagging(base=A, seed=3)) == told(Bagging(base=B, seed=4))
    stages = [Bagging(base=A, seed=3), B]
    assert told(Pipeline(stages=stages))["base 0"]["stages"]["0"]["seed"] == "3"
