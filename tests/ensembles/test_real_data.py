"""Ensembles on Adult: bagging and stacking keep up with single models."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.functions import array_to_vector

from sparkdl import Bagging, Stacking, TorchClassifier
from tests.ml import nets
from tests.rounds.data import adult
from tests.sessions import frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def measured(spark):
    """The metric of an estimator's model on the test rows."""
    frames = {}
    for name, (x, y) in adult().items():
        rows = frame({"id": np.arange(len(y)), "x": x, "label": y.astype(np.float64)})
        frames[name] = rows.withColumn("features", array_to_vector("x")).repartition(2, "id").cache()

    def measure(estimator, metric):
        scored = estimator.fit(frames["train"]).transform(frames["test"])
        return MulticlassClassificationEvaluator(metricName=metric).evaluate(scored)

    return measure


def test_bagged_networks_have_a_smaller_loss_than_one(measured):
    base = TorchClassifier(
        model=partial(nets.mlp, adult()["test"][0].shape[1], 64, outputs=2),
        inputCols=["x"],
        optimizer=partial(torch.optim.Adam, lr=2e-3),
        batchSize=256,
        epochs=5,
        idCol="id",
    )
    bagged = measured(Bagging(base=base, numModels=8), "logLoss")
    assert bagged <= measured(base, "logLoss")
    assert bagged < 0.33


def test_stacking_is_as_accurate_as_the_better_of_its_bases(measured):
    bases = [LogisticRegression(regParam=1e-4), DecisionTreeClassifier(maxDepth=8)]
    stacking = Stacking(bases=bases, numFolds=3, idCol="id", parallelism=2)
    assert measured(stacking, "accuracy") > max(measured(base, "accuracy") for base in bases) - 0.002
