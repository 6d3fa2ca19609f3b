"""The descriptions of an ensemble's members: equal in another process, with nothing that changes no member."""

from __future__ import annotations

import pytest
import torch
from pyspark.ml import Estimator, Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.param.shared import HasMaxIter, HasSeed
from torch import nn

from sparkdl import TorchClassifier
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.best_of import BestOf
from sparkdl.ensembles.boosting.estimator import Boosting
from sparkdl.ensembles.identity import configuration
from tests.ml import nets


def said(depth=2, **given):
    stages = [VectorAssembler(inputCols=["x"], outputCol="features"), DecisionTreeClassifier(maxDepth=depth)]
    ensemble = Boosting(base=Pipeline(stages=stages), **given)
    return configuration(ensemble, ensemble.bases(), "3 rows, 7")


def test_configuration_is_of_what_members_depend_on(spark):
    assert said() == said()  # of other objects, with other uids
    assert said(numModels=3, runDir="/somewhere", tol=0.1) == said()
    for given in ({"learningRate": 0.5}, {"seed": 1}, {"idCol": "row"}):
        (name,) = given
        assert {key for key in said() if said(**given)[key] != said()[key]} == {name}
    assert {key for key in said() if said(3)[key] != said()[key]} == {"base 0"}
    assembler, tree = said(3)["base 0"]["stages"].values()
    assert (assembler["class"], tree["class"], tree["maxDepth"]) == ("VectorAssembler", "DecisionTreeClassifier", "3")
    assert assembler["inputCols"] == "['x']"


def test_what_changes_no_ensemble_may_change_a_base(spark):
    def told(**given):
        ensemble = Boosting(base=LogisticRegression(**given))
        return configuration(ensemble, ensemble.bases(), "3 rows, 7")

    assert told(tol=1e-2) != told(tol=1e-6)


def test_uids_do_not_count(spark):
    def told():
        scaler = StandardScaler(inputCol="x")
        tree = DecisionTreeClassifier(featuresCol=scaler.getOutputCol())
        ensemble = BestOf(candidates=[Pipeline(stages=[scaler, tree])], evaluator=BinaryClassificationEvaluator())
        return configuration(ensemble, ensemble.bases(), "3 rows, 7")

    assert told() == told()
    scaler, tree = told()["base 0"]["stages"].values()
    assert scaler["outputCol"] == tree["featuresCol"]
    assert told()["evaluator"]["metricName"] == "areaUnderROC"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (
            {
                "resourceTimeout": 1.0,
                "maxRestarts": 1,
                "minWorkers": 1,
                "elasticTimeout": 1.0,
                "checkpointInterval": "never",
            },
            False,
        ),
        ({"allowUnencrypted": True, "hooks": [print], "seed": 9, "runDir": "/somewhere"}, False),
        ({"epochs": 2}, True),
        ({"numWorkers": 2}, True),
        ({"maxSeconds": 9.0}, True),
        ({"maxRounds": 3}, True),
        ({"loss": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]))}, True),
        ({"model": lambda: nn.Linear(3, 2)}, True),
        ({"model": nn.Linear(3, 2)}, True),
    ],
)
def test_what_changes_members_of_a_network(spark, given, count):
    def told(**given):
        ensemble = Bagging(base=TorchClassifier(**{"model": nets.two_scores, **given}))
        return configuration(ensemble, ensemble.bases(), "3 rows, 7")

    assert (told(**given) != told()) == count
    assert told(**given) == told(**given)


# ---- seeds --------------------------------------------------------------------------------------------------------


class Seeded(Estimator, HasSeed, HasMaxIter):
    """As those of pyspark.ml, whose seed is by default a hash of the class's name, another one in each process."""

    def _fit(self, dataset):
        raise NotImplementedError


A, B = Seeded()._set(seed=7), Seeded()


def seeded(base):
    return configuration(Seeded()._set(maxIter=3), [base], "2 rows")


def test_a_seed_that_nobody_has_given_does_not_count():
    base = Seeded()
    assert base.isDefined("seed")
    assert seeded(base) == {"ensemble": "Seeded", "rows": "2 rows", "maxIter": "3", "base 0": {"class": "Seeded"}}


def test_a_seed_that_was_given_counts_where_members_do_not_replace_it():
    assert seeded(Seeded()._set(seed=7)) == seeded(Seeded()._set(seed=8)) == seeded(Seeded())
    earlier, last = (seeded(Pipeline(stages=stages))["base 0"]["stages"] for stages in ([A, B], [B, A]))
    assert (earlier["0"], earlier["1"]) == ({"class": "Seeded", "seed": "7"}, {"class": "Seeded"})
    assert last == {"0": {"class": "Seeded"}, "1": {"class": "Seeded"}}


def test_bases_of_ensembles_that_are_bases_are_given_seeds_as_well():
    assert seeded(Bagging(base=A, seed=3)) == seeded(Bagging(base=B, seed=4))
    stages = [Bagging(base=A, seed=3), B]
    assert seeded(Pipeline(stages=stages))["base 0"]["stages"]["0"]["seed"] == "3"
