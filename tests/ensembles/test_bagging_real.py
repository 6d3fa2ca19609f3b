"""Bagging of networks on real data: at least as good as one network that is trained on all rows for as many epochs."""

from __future__ import annotations

import warnings
from functools import partial
from statistics import median

import numpy as np
import pytest
import torch
from pyspark.ml.functions import vector_to_array
from sklearn.metrics import log_loss
from torch import nn

from benchmarks.federated import digits
from sparkdl import Bagging, TorchClassifier
from tests.rounds.data import adult, real
from tests.sessions import frame

SEEDS = range(5)


def mnist() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two thirds of MNIST's 10 000 test images to train on, and a third to test with."""
    real("t10k-images-idx3-ubyte.gz")
    parts = zip(("train", "test"), digits.mnist(1 / 3, 0), strict=True)
    return {name: (part.pixels.astype(np.float32) / 255, part.digits) for name, part in parts}


def network(inputs: int, classes: int) -> nn.Module:
    """A perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))


def losses(models, test, labels: np.ndarray) -> list[float]:
    """The log loss of each on the test rows."""
    found = []
    for model in models:
        rows = model.transform(test).orderBy("id").select(vector_to_array("probability")).collect()
        chances = np.array([row[0] for row in rows])
        found.append(log_loss(labels, chances / chances.sum(1, keepdims=True), labels=np.unique(labels)))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("data", "epochs", "batch"), [(adult, 5, 256), (mnist, 10, 64)])
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
