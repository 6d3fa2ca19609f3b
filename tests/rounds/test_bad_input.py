"""Rows and rates that make losses or results infinite raise; rows without weight count nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver, NewtonCG
from sparkdl.rounds.loop import Rounds
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
