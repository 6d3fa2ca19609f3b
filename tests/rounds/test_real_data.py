"""Networks on real data: averaging shards is as accurate as training on all rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from benchmarks.federated import main as federated
from benchmarks.federated.digits import two_digits
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective import Objective
from tests.rounds.data import adult, real

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_parallel_sgd_of_four_shards_is_as_good_as_one_on_adult():
    """Averaged after every epoch; and once, as in Zinkevich et al."""
    (x, y), (test, labels) = (adult()[name] for name in ("train", "test"))
    network = partial(nn.Sequential, nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    objective = Objective(network(), nn.BCEWithLogitsLoss(), partial(torch.optim.Adam, lr=1e-3))
    columns = Columns((InputColumn("x"),), InputColumn("y"), row_id=InputColumn("id", "int64"))
    areas = []
    for num_shards, rounds in ((1, 5), (4, 5), (4, 1)):
        algorithm = ParallelSGD(rounds=rounds, epochs=5 // rounds, shard_batch_size=64)
        data = {"x": x, "y": y, "id": np.arange(len(y))}
        with InlineCluster().map_reduce(data, columns, num_shards=num_shards) as jobs:
            state, _ = Rounds(algorithm, objective).run(jobs)
        module = network()
        module.load_state_dict(state["weights"])
        with torch.no_grad():
            areas.append(roc_auc_score(labels, module(torch.from_numpy(test)).squeeze(-1)))
    assert areas[0] > 0.9
    assert min(areas[1:]) > areas[0] - 0.01


def test_federated_averaging_of_clients_with_two_digits_reaches_0_9_on_mnist():
    """As in McMahan et al.; the data of ``benchmarks/federated``."""
    real("t10k-images-idx3-ubyte.gz")
    curve = federated.Bench(two_digits).run(federated.FED_AVG, rate=0.3)
    assert curve.rounds <= federated.BUDGET
