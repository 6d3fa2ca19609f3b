"""Parallel SGD of a network on Adult: as good as one process that has seen as many rows."""

from __future__ import annotations

import functools
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective
from tests.rounds.data import adult

pytestmark = pytest.mark.usefixtures("one_thread")

EPOCHS = 5
BATCH = 64


def network() -> nn.Module:
    """Two layers, and one score."""
    width = adult()["train"][0].shape[1]
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))


def area(module: nn.Module) -> float:
    x, y = adult()["test"]
    with torch.no_grad():
        return float(roc_auc_score(y, module(torch.from_numpy(x)).squeeze(-1).numpy()))


@functools.cache
def area_of_one_process() -> float:
    """By a plain loop over shuffled rows."""
    x, y = (torch.from_numpy(each) for each in adult()["train"])
    torch.manual_seed(0)
    module, loss = network(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss(module(x[rows]).squeeze(-1), y[rows]).backward()
            optimizer.step()
    return area(module)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [EPOCHS, 1])
def test_averaging_four_parts_is_as_good_as_one_process(rounds):
    """Averaged after every epoch; and once, from the same start, as Zinkevich et al. do it."""
    x, y = adult()["train"]
    columns = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"))
    objective = Objective(network, nn.BCEWithLogitsLoss(), partial(torch.optim.Adam, lr=1e-3))
    algorithm = ParallelSGD(rounds=rounds, epochs=EPOCHS // rounds, shard_batch_size=BATCH)
    data = {"x": x, "y": y, "id": np.arange(len(y))}
    with InlineCluster().map_reduce(data, columns, parts=4) as jobs:
        state, history = Rounds(algorithm, objective).run(jobs)
    assert len(history) == rounds
    module = network()
    module.load_state_dict(state["weights"])
    expected = area_of_one_process()
    assert expected > 0.9
    assert area(module) > expected - 0.01
