"""Ensembles on Adult: bagging and stacking keep up with single models."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml.classification import DecisionTreeClassifier, LogisticRegression
from pyspark.ml.functions import array_to_vector, vector_to_array
from sklearn.metrics import log_loss

from sparkdl import Bagging, Stacking, TorchClassifier
from tests.ml import nets
from tests.rounds.data import adult
from tests.sessions import frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return adult()


@pytest.fixture(scope="module")
def frames(spark, rows):
    found = {}
    for name, (x, y) in rows.items():
        made = frame({"id": np.arange(len(y)), "x": x, "label": y.astype(np.int64)})
        found[name] = made.withColumn("features", array_to_vector("x")).repartition(2, "id").cache()
    return found


def accuracy(model, frames) -> float:
    return model.transform(frames["test"]).where("prediction = label").count() / frames["test"].count()


def test_bagged_networks_have_a_smaller_loss_than_one(rows, frames):
    x, y = rows["test"]
    base = TorchClassifier(
        model=partial(nets.mlp, x.shape[1], 64, outputs=2),
        inputCols=["x"],
        optimizer=partial(torch.optim.Adam, lr=2e-3),
        batchSize=256,
        epochs=5,
        idCol="id",
    )
    losses = []
    for estimator in (Bagging(base=base, numModels=8), base):
        scored = estimator.fit(frames["train"]).transform(frames["test"]).orderBy("id")
        chances = np.array([row[0] for row in scored.select(vector_to_array("probability")).collect()])
        losses.append(log_loss(y, chances / chances.sum(1, keepdims=True)))
    assert losses[0] <= losses[1]
    assert losses[0] < 0.33


def test_stacking_is_as_accurate_as_the_better_of_its_bases(frames):
    bases = [LogisticRegression(regParam=1e-4), DecisionTreeClassifier(maxDepth=8)]
    alone = [accuracy(base.fit(frames["train"]), frames) for base in bases]
    model = Stacking(bases=bases, numFolds=3, idCol="id", parallelism=2).fit(frames["train"])
    assert accuracy(model, frames) > max(alone) - 0.002
