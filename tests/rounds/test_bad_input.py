"""Rows and rates that make losses or results infinite raise; rows without weight count nothing.

The inspection before the first round sees a row of the model's output, whatever the rows weigh.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.inspection import InspectShard, inspect_shards
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective
from tests.contracts.algorithm_contract import COLUMNS, data, objective

EVERY = [
    ParallelSGD(),
    LBFGS(),
    FederatedAveraging("client", client_fraction=1.0),
    *(ConsensusADMM(solver=solver) for solver in (NewtonCG(), ConjugateGradient(), LocalSGDSolver())),
]


def run(folder, algorithm, minimised=None, *, shards: int = 3, **columns):
    """The weights after at most four rounds on the data with other columns, 30 rows per shard."""
    table = pa.table({name: list(array) for name, array in (data() | columns).items()})
    runner = InlineTaskRunner(ShardedData([table.slice(30 * at, 30) for at in range(shards)], COLUMNS, shards))
    return Rounds(algorithm, minimised or objective(), memories=str(folder), max_rounds=4).run(runner)[0]["weights"]


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_rows_of_infinite_loss_and_without_weight(algorithm, tmp_path):
    x, w = data()["x"], data()["w"]
    x[70] = 1e200  # its square is infinite
    with pytest.raises(InvalidInput, match=r"shard 2 in round 1: .*not finite"):
        run(tmp_path, algorithm, x=x)
    with pytest.raises(InvalidInput, match="all training rows weigh 0"):
        run(tmp_path, algorithm, w=np.zeros(90))
    w[60:] = 0.0
    two, three = run(tmp_path / "two", algorithm, w=w, shards=2), run(tmp_path / "three", algorithm, w=w)
    for name, tensor in two.items():
        assert torch.allclose(tensor, three[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "rate", "large", "message"),
    [
        (ParallelSGD(shard_batch_size=8), 1e200, False, "shard 0 in round 1: .*"),
        (ConsensusADMM(solver=LocalSGDSolver(batch_size=8)), 1e200, False, "shard 0 in round 1: .*"),
        # A shard takes one step, before which its loss is finite; large labels make that step too long.
        (ParallelSGD(shard_batch_size=100), 1e250, True, "shard 2 in round 1: weights/weight is "),
        (FederatedAveraging("client", 1.0, batch_size=100), 1e250, True, "shard 2 in round 1: delta is "),
        (ConsensusADMM(solver=LocalSGDSolver(batch_size=100)), 1e100, True, "shard 2 in round 1: delta2 is "),
    ],
    ids=str,
)
def test_infinite_losses_and_results_raise(algorithm, rate, large, message, tmp_path):
    y = data()["y"]
    y[60:] *= 1e100 if large else 1.0
    wild = replace(objective(), optimizer=partial(torch.optim.SGD, lr=rate))
    with pytest.raises(InvalidInput, match=f"{message}not finite; lower the learning rate"):
        run(tmp_path, algorithm, wild, y=y)


# ---- the inspection before the first round ---------------------------------------------------------------------------


PLAIN = Columns((InputColumn("x"),), InputColumn("y", "int64"))
WEIGHED = replace(PLAIN, row_id=InputColumn("id", "int64"), weight=InputColumn("w"))
LOSS = nn.CrossEntropyLoss(ignore_index=-1)
SCORES = Objective(partial(nn.Linear, 3, 3), LOSS)


def two_shards(columns: Columns, weights, labels) -> ShardedData:
    """Two shards of four rows each, in descending order of their ids."""
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    table = pa.table({"x": list(x), "y": pa.array(labels, pa.int64()), "w": weights, "id": [3, 2, 1, 0]})
    return ShardedData([table, table], columns, 2)


class Both(nn.Linear):
    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return super().forward(x) + other.float()


def two_inputs(inputs, target):
    return (inputs[0], inputs[0][:, :1].double()), target


@pytest.mark.parametrize(
    ("columns", "weights", "labels"),
    [
        pytest.param(WEIGHED, [0.0, 0.0, 0.0, 1.0], [0, 1, 2, 0], id="one row has weight"),
        pytest.param(PLAIN, [1.0] * 4, [-1, -1, 2, 0], id="first labels are ignored"),
    ],
)
def test_shapes_and_errors_are_seen_for_any_weights(columns, weights, labels):
    def seen(objective: Objective, transforms: Transforms | None = None):
        runner = InlineTaskRunner(two_shards(columns, weights, labels))
        return inspect_shards(runner, InspectShard(objective, transforms=transforms))

    plain = seen(SCORES)
    assert (plain.output, plain.inputs) == ([3], [([3], "float32")])
    transforms = Transforms(two_inputs, denominators=SCORES.criterion().denominators)
    collated = seen(Objective(partial(Both, 3, 3), LOSS), transforms)
    assert (collated.output, collated.inputs) == ([3], [([3], "float32"), ([1], "float64")])
    with pytest.raises(WorkerFailed, match=r"shard 0 in round 0: forward\(\) of Linear raised"):
        seen(Objective(partial(nn.Linear, 5, 3), LOSS))
    with pytest.raises(InvalidInput, match=r"shard 0 in round 0: CrossEntropyLoss takes scores \[B, classes, ...\]"):
        seen(Objective(lambda: nn.Sequential(nn.Linear(3, 3), nn.Unflatten(1, (3, 1))), LOSS))


def test_loss_is_called_with_first_row_of_positive_weight():
    called = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        called.append(target.tolist())
        return nn.functional.cross_entropy(output, target, reduction="none")

    for shard in two_shards(WEIGHED, [0.0, 3.0, 0.0, 1.0], [0, 1, 0, 2]).shards():
        InspectShard(Objective(partial(nn.Linear, 3, 3), loss)).map({}, shard)
    assert called == [[2, 1, 0, 0], [2, 1, 0, 0]]
