"""Convergence on scans of digits: strategies that communicate less end with the accuracy of all-reduce."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics.classification import MulticlassAccuracy

from sparkdl.cluster.local import LocalCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.elastic_averaging import ElasticAveraging
from sparkdl.training.strategies.gossip import Gossip
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.reducers.one_bit import OneBit
from sparkdl.training.strategies.reducers.powersgd import PowerSGD
from sparkdl.training.strategies.reducers.topk import TopK

COLUMNS = Columns((InputColumn("pixels"),), InputColumn("digit", "int64"), validation=InputColumn("held out", "bool"))
TOLERANCE = 0.015  # six of 397 validation scans


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def linear(optimizer: torch.optim.Optimizer, steps_per_epoch: int, epochs: int) -> LambdaLR:
    """The learning rate falls to 0; otherwise the outer momentum would move the last weights."""
    return LambdaLR(optimizer, lambda step: 1 - step / (steps_per_epoch * epochs))


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(2, threads=1) as two:
        yield two


SEEDS = range(3)  # one seed's accuracy has a step of 1/397


def accuracy(cluster: LocalCluster, strategy: Any) -> float:
    """The share of validation scans that the trained networks label correctly, the mean over seeds."""
    pixels, digit = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digit))
    data = {"pixels": pixels[order] / 16, "digit": digit[order], "held out": np.arange(len(digit)) >= 1_400}
    sgd, metrics = partial(torch.optim.SGD, lr=0.1, momentum=0.9), {"accuracy": MulticlassAccuracy(10, average="micro")}
    objective = Objective(network, nn.CrossEntropyLoss(), sgd, linear, metrics, scheduler_interval="step")
    runs = [Training(objective, 32, 5, seed, strategy=strategy) for seed in SEEDS]
    histories = [cluster.gang(training, data, COLUMNS)[0].history for training in runs]
    return float(np.mean([history[-1]["valid_accuracy"] for history in histories]))


@pytest.fixture(scope="module")
def reference(cluster):
    reached = accuracy(cluster, AllReduce())
    assert reached > 0.96
    return reached


@pytest.mark.parametrize(
    "strategy",
    [
        LocalSGD(8),
        LocalSGD.block_momentum(2, every=8),
        LocalSGD.slowmo(8, reset_inner=True),
        ElasticAveraging(8),
        Gossip("ring", 8),
        AllReduce(reduce=TopK(0.05)),
        AllReduce(reduce=OneBit(warmup=20)),
        AllReduce(reduce=PowerSGD(2, warmup=20)),
    ],
    ids=["local SGD", "block momentum", "SlowMo", "elastic averaging", "gossip", "TopK", "OneBit", "PowerSGD"],
)
def test_strategy_ends_with_the_accuracy_of_all_reduce(cluster, reference, strategy):
    assert accuracy(cluster, strategy) >= reference - TOLERANCE
