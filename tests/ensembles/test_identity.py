"""The descriptions of an ensemble's members: equal across processes, without settings that change no member."""

import pytest
from pyspark.ml import Estimator, Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import StandardScaler
from pyspark.ml.param.shared import HasMaxIter, HasSeed
from torch import nn

from sparkdl import EMA, Bagging, BestOf, Boosting, TorchClassifier
from sparkdl.ensembles.params import configuration
from tests.ml import nets


def described(ensemble):
    return configuration(ensemble, ensemble.base_estimators(), "3 rows, 7")


def tree(depth=2, **given):
    scaler = StandardScaler(inputCol="x")
    base = DecisionTreeClassifier(featuresCol=scaler.getOutputCol(), maxDepth=depth)
    return described(Boosting(base=Pipeline(stages=[scaler, base]), **given))


def test_configuration_has_what_members_depend_on(spark):
    assert tree() == tree()  # of other objects, with other uids
    assert tree(numModels=3, runDir="/somewhere", tol=0.1) == tree()
    for given in ({"learningRate": 0.5}, {"seed": 1}, {"idCol": "row"}):
        assert {key for key in tree() if tree(**given)[key] != tree()[key]} == set(given)
    assert {key for key in tree() if tree(3)[key] != tree()[key]} == {"base 0"}
    scaler, last = tree(3)["base 0"]["stages"].values()
    assert (scaler["class"], last["class"], last["maxDepth"]) == ("StandardScaler", "DecisionTreeClassifier", "3")
    assert scaler["outputCol"] == last["featuresCol"]
    tols = [described(Boosting(base=LogisticRegression(tol=tol))) for tol in (1e-2, 1e-6)]
    assert tols[0] != tols[1]
    best = described(BestOf(candidates=[LogisticRegression()], evaluator=BinaryClassificationEvaluator()))
    assert best["evaluator"]["metricName"] == "areaUnderROC"


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"resourceTimeout": 1.0, "maxRestarts": 1, "minWorkers": 1, "elasticTimeout": 1.0}, False),
        ({"checkpointInterval": "never", "allowUnencrypted": True, "callbacks": [print], "seed": 9}, False),
        ({"runDir": "/somewhere"}, False),
        *(({"callbacks": [EMA()]}, True), ({"model": nn.Linear(3, 2)}, True), ({"epochs": 2}, True)),
        *(({name: 3}, True) for name in ("numWorkers", "maxSeconds", "maxRounds")),
    ],
)
def test_settings_that_change_members_of_a_network(spark, given, count):
    def network(**given):
        return described(Bagging(base=TorchClassifier(**{"model": nets.two_scores, **given})))

    assert (network(**given) != network()) == count
    assert network(**given) == network(**given)


class Seeded(Estimator, HasSeed, HasMaxIter):
    """By default its seed is a hash of the class's name, another one in each process, as in pyspark.ml."""

    def _fit(self, dataset):
        raise NotImplementedError


def seeded(base):
    return configuration(Seeded()._set(maxIter=3), [base], "2 rows")


def test_seeds_count_if_set_and_not_replaced_by_member_seeds():
    given, unset, plain = Seeded()._set(seed=7), Seeded(), {"class": "Seeded"}
    assert unset.isDefined("seed")
    assert seeded(unset) == {"ensemble": "Seeded", "rows": "2 rows", "maxIter": "3", "base 0": plain}
    assert seeded(given) == seeded(Seeded()._set(seed=8)) == seeded(unset)
    earlier, last = (seeded(Pipeline(stages=stages))["base 0"]["stages"] for stages in ([given, unset], [unset, given]))
    assert (earlier, last) == ({"0": {"class": "Seeded", "seed": "7"}, "1": plain}, {"0": plain, "1": plain})
    assert seeded(Bagging(base=given, seed=3)) == seeded(Bagging(base=unset, seed=4))
    assert seeded(Pipeline(stages=[Bagging(base=given, seed=3), unset]))["base 0"]["stages"]["0"]["seed"] == "3"
