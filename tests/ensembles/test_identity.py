"""What tells ensembles' members and rows apart: the same in another process, and nothing that changes no member."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.sql import functions as F
from torch import nn

from sparkdl import TorchClassifier
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.best_of import BestOf
from sparkdl.ensembles.boosting.estimator import Boosting
from sparkdl.ensembles.identity import configuration, rows_fingerprint
from tests.ml import nets
from tests.sessions import frame


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
        ({"slotWait": 1.0, "maxRestarts": 1, "minWorkers": 1, "elasticWait": 1.0, "checkpointEvery": "never"}, False),
        ({"allowPlaintext": True, "hooks": [print], "seed": 9, "runDir": "/somewhere"}, False),
        ({"epochs": 2}, True),
        ({"numWorkers": 2}, True),
        ({"timeBudget": 9.0}, True),
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


def test_columns_that_were_renamed_are_others(spark):
    given = frame({"id": np.arange(20), "one": np.linspace(0, 1, 20), "other": np.linspace(1, 2, 20)})
    found = [rows_fingerprint(given.withColumnRenamed(name, "label")) for name in ("one", "other")]
    assert found[0] != found[1]
    assert rows_fingerprint(given.select("other", "id", "one")) == rows_fingerprint(given)
    null = [given.withColumn(name, F.lit(None).cast("double")) for name in ("one", "other")]
    assert rows_fingerprint(null[0].withColumn("other", F.lit(1.0))) != rows_fingerprint(
        null[1].withColumn("one", F.lit(1.0))
    )


def test_fingerprint_is_of_the_rows_in_any_order(spark):
    given = frame({"a": np.arange(20), "b": np.linspace(0, 1, 20)})
    found = rows_fingerprint(given)
    assert found.startswith("20 rows, ")
    assert rows_fingerprint(given.repartition(3).orderBy(F.desc("a"))) == found
    assert rows_fingerprint(given.where("a > 0")) != found
    assert rows_fingerprint(given.withColumn("b", F.col("b") + 1)) != found
    with_maps = given.withColumn("m", F.array(F.create_map("a", "b")))
    assert rows_fingerprint(with_maps) == found
