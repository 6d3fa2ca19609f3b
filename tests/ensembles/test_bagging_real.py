"""Bagging of networks on real data: at least as good as one network that is trained on all rows for as many epochs."""

from __future__ import annotations

import warnings
from functools import partial
from statistics import median

import numpy as np
import pytest
import torch
from pyspark.ml.functions import vector_to_array
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from torch import nn

from sparkdl import Bagging, TorchClassifier
from tests.rounds.data import adult
from tests.sessions import frame

SEEDS = range(5)


def digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two thirds of scikit-learn's digits to train on, and a third to test with."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.float32)
    held = np.arange(len(y)) % 3 == 0
    return {"train": (x[~held], y[~held]), "test": (x[held], y[held])}


def network(inputs: int, classes: int) -> nn.Module:
    """A perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))


def losses(models, test, labels: np.ndarray) -> list[float]:
    """The log loss of each on the test rows."""
    found = []
    for model in models:
        rows = model.transform(test).orderBy("id").select(vector_to_array("probability")).collect()
        found.append(log_loss(labels, np.array([row[0] for row in rows]), labels=np.unique(labels)))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("data", "epochs", "batch"), [(adult, 5, 256), (digits, 30, 64)])
def test_eight_networks_are_at_least_as_good_as_one(spark, data, epochs, batch):
    rows = {
        name: frame({"id": np.arange(len(y)), "features": x, "label": y.astype(np.int64)}).repartition(2, "id").cache()
        for name, (x, y) in data().items()
    }
    x, y = data()["test"]
    base = TorchClassifier(
        model=partial(network, x.shape[1], len(np.unique(y))),
        optimizer=partial(torch.optim.Adam, lr=2e-3),
        batchSize=batch,
        epochs=epochs,
        idCol="id",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bagged = [Bagging(base=base, numModels=8, seed=seed).fit(rows["train"]) for seed in SEEDS]
        alone = [base.copy({base.seed: seed}).fit(rows["train"]) for seed in SEEDS]
    many, one = losses(bagged, rows["test"], y), losses(alone, rows["test"], y)
    print("log loss of eight:", many, "of one:", one)
    assert median(many) <= median(one)
    assert median(many) < 0.33
