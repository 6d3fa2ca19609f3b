"""Tasks of rounds compute on their device, here a simulated GPU, and return tensors on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanSquaredError

from docs.examples.algorithm import GradientDescent
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.rounds import Memory, State, Update
from sparkdl.rounds.algorithms.admm import ConsensusADMM
from sparkdl.rounds.algorithms.fedavg import FederatedAveraging
from sparkdl.rounds.algorithms.lbfgs import LBFGS
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.local_solvers import ConjugateGradient, LocalSGDSolver
from sparkdl.rounds.loop import Rounds
from sparkdl.rounds.prox import L1
from sparkdl.training.objective.objective import Objective
from tests.contracts import algorithm_contract
from tests.rounds.simulated_gpu import simulated_gpu

COLUMNS = replace(algorithm_contract.COLUMNS, validation=InputColumn("held out", "bool"))
CLASSES = replace(COLUMNS, target=InputColumn("client", "int64"))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


STEPS = Objective(net, nn.MSELoss(), partial(torch.optim.Adam, lr=0.01), precision="fp64", max_grad_norm=1.0)
CONVEX = replace(STEPS, model=partial(nn.Linear, 4, 1))
WEIGHTED = replace(STEPS, model=partial(nn.Linear, 4, 9), loss=nn.CrossEntropyLoss(torch.arange(1.0, 10.0)))
ALGORITHMS: dict[str, tuple[Any, Objective, Columns]] = {
    "parallel SGD": (
        ParallelSGD(epochs=2, shard_batch_size=20),
        replace(STEPS, metrics={"error": MeanSquaredError()}),
        COLUMNS,
    ),
    "classes": (ParallelSGD(shard_batch_size=20), WEIGHTED, CLASSES),
    "federated": (FederatedAveraging("client", 0.5, epochs=2, prox_mu=0.1, quantize_bits=4), STEPS, COLUMNS),
    "ADMM by Newton-CG": (ConsensusADMM(prox=L1(1e-2)), CONVEX, COLUMNS),
    "ADMM by conjugate gradients": (ConsensusADMM(solver=ConjugateGradient()), CONVEX, COLUMNS),
    "ADMM by SGD": (ConsensusADMM(solver=LocalSGDSolver(batch_size=20)), STEPS, COLUMNS),
    "L-BFGS": (LBFGS(l2=1e-3), CONVEX, COLUMNS),
    "custom": (GradientDescent(lr=0.1, rounds=3), CONVEX, COLUMNS),
}


def trained(algorithm: Any, objective: Objective, columns: Columns, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    table: dict[str, np.ndarray] = algorithm_contract.data() | {"held out": np.arange(90) % 5 == 0}
    with InlineCluster().map_reduce(table, columns, num_shards=2) as jobs:
        state, history = Rounds(algorithm, objective, 3, memories=str(folder), max_rounds=3).run(jobs)
    return state["weights"], [{**row, "seconds": 0} for row in history]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_on_a_gpu_equal_those_on_the_cpu(name, monkeypatch, tmp_path):
    weights, history = trained(*ALGORITHMS[name], tmp_path / "cpu")
    with simulated_gpu(monkeypatch) as gpu:
        moved, rows = trained(*ALGORITHMS[name], tmp_path / "gpu")
    assert gpu.operations > 100
    for part, tensor in weights.items():
        torch.testing.assert_close(moved[part], tensor, rtol=1e-9, atol=1e-12)
    for row, expected in zip(rows, history, strict=True):
        assert row == pytest.approx(expected, rel=1e-6)


@dataclass(frozen=True)
class Staying(LBFGS):
    """Returns its gradient on the device."""

    def map(self, objective: Objective, state: State, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
        update, memory = super().map(objective, state, shard, memory)
        return update | {"gradient": update["gradient"].to(objective.device)}, memory


def test_an_algorithm_that_returns_tensors_on_a_gpu_is_named(monkeypatch, tmp_path):
    trained(Staying(), CONVEX, COLUMNS, tmp_path)
    expected = r"Staying.map returned 'gradient' on cuda:1; expected tensors on the CPU"
    with simulated_gpu(monkeypatch), pytest.raises(InvalidInput, match=expected):
        trained(Staying(), CONVEX, COLUMNS, tmp_path)
