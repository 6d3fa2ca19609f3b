"""Training on one shard alone: the order of its rows, the learning rate of a round, and clipping."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan, generator
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_training import Local, toward
from sparkdl.training.objective import Objective
from tests.contracts.algorithm_contract import data, shards_of, states

RATE = 0.05
ROUNDS = 4
V = np.array([3.0, -1.0, 0.0, 2.0, -5.0])


def objective(**options: object) -> Objective:
    sgd = partial(torch.optim.SGD, lr=RATE)
    return Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), sgd, precision="fp64", **options)


def gradient(x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Gradient of the rows' mean squared error with respect to the weights and the bias, in numpy."""
    arrays = {name: array[rows] for name, array in data().items()}
    inputs, w = np.c_[arrays["x"], np.ones(len(arrays["y"]))], arrays["w"]
    return 2 * inputs.T @ (w * (inputs @ x - arrays["y"])) / w.sum()


def vector(weights: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([weights["weight"].detach().flatten(), weights["bias"].detach()]).numpy().copy()


def steps(number: int, batch_size: int, epochs: int) -> list[np.ndarray]:
    """The rows of each step of shard 0 in a round."""
    plan = Plan((90,), batch_size, generator(3, 0, number).initial_seed())
    return [rows.numpy() for epoch in range(epochs) for rows in plan.permutation(0, epoch).long().split(batch_size)]


def test_scheduler_steps_once_per_round_and_every_step_is_clipped():
    """The scheduler steps neither once per step, of which a round has six, nor once per epoch."""
    halved = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    algorithm = ParallelSGD(rounds=ROUNDS, epochs=2, shard_batch_size=30)
    first, *others = states(algorithm, shards_of(90), ROUNDS, objective(scheduler=halved, max_grad_norm=0.5))
    x = vector(first["weights"])
    for number, state in enumerate(others):
        for rows in steps(number, 30, 2):
            g = gradient(x, rows)
            assert np.linalg.norm(g) > 0.5
            x = x - RATE * 0.5**number * g * 0.5 / (np.linalg.norm(g) + 1e-6)
        assert np.allclose(vector(state["weights"]), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("most", "strength"), [(0.25, 0.0), (0.25, 4.0), (100.0, 0.0)])
def test_gradient_is_clipped_with_its_pull(most, strength):
    minimised, [shard] = objective(max_grad_norm=most), shards_of(90)
    torch.manual_seed(0)
    module = minimised.build()
    before = vector(module.state_dict())
    pull = toward(torch.from_numpy(V), strength) if strength else None
    Local(1, 100, 0, (3, 0), pull).train(minimised, module, as_only_shard(shard, minimised.criterion()))
    g = gradient(before) + strength * (before - V)
    expected = RATE * g * min(1.0, most / (np.linalg.norm(g) + 1e-6))  # as in torch
    assert np.linalg.norm(g) > 0.5
    assert np.allclose(before - vector(module.state_dict()), expected, rtol=1e-10)


seen = set[torch.dtype]()


class Seen(nn.Linear):
    """Notes the dtypes of its outputs in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        if self.training:
            seen.add(output.dtype)
        return output


def test_bf16_computes_steps_under_autocast_and_keeps_weights_in_float32():
    columns = Columns((InputColumn("x"),), InputColumn("y"))
    shards = ShardedData({name: data()[name] for name in ("x", "y")}, columns, 2).shards()
    given = replace(objective(), model=partial(Seen, 4, 1))
    half, single = (
        states(ParallelSGD(shard_batch_size=30), shards, 4, replace(given, precision=precision))[-1]
        for precision in ("bf16", "fp32")
    )
    assert seen == {torch.bfloat16, torch.float32}
    assert half["weights"]["weight"].dtype == torch.float32
    torch.testing.assert_close(half["weights"], single["weights"], rtol=0.05, atol=0.02)
    assert not torch.equal(half["weights"]["weight"], single["weights"]["weight"])
