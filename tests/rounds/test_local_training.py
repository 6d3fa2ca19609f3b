"""Training on one part alone: which rate it has in a round, and what is clipped."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.data.sampler import Plan, generator
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.evaluate import as_only_shard
from sparkdl.rounds.local_training import Local, toward
from sparkdl.training.objective import Objective
from tests.contracts.algorithm_contract import data, parts_of, states

RATE = 0.05
ROUNDS = 4


def halved(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A rate that every step of the scheduler halves."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def objective(**options: object) -> Objective:
    """Squared errors of a linear model, by plain SGD in fp64."""
    sgd = partial(torch.optim.SGD, lr=RATE)
    return Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), sgd, precision="fp64", **options)


def gradient(x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Of the rows' mean squared error at the weights and the bias, by hand."""
    arrays = {name: array[rows] for name, array in data().items()}
    inputs, w = np.c_[arrays["x"], np.ones(len(arrays["y"]))], arrays["w"]
    return 2 * inputs.T @ (w * (inputs @ x - arrays["y"])) / w.sum()


def vector(weights: dict[str, torch.Tensor]) -> np.ndarray:
    return torch.cat([weights["weight"].detach().flatten(), weights["bias"].detach()]).numpy().copy()


def orders(number: int, batch_size: int, epochs: int) -> list[np.ndarray]:
    """The rows of each step of part 0 in a round."""
    seed = generator(3, 0, number).initial_seed()
    plan = Plan((90,), batch_size, seed)
    epoch = [plan.permutation(0, each).long().split(batch_size) for each in range(epochs)]
    return [rows.numpy() for steps in epoch for rows in steps]


def stepped(wanted: Objective, local: Local) -> tuple[np.ndarray, np.ndarray]:
    """Weights before and after a part's training, all of whose rows make one step."""
    torch.manual_seed(0)
    module = wanted.build()
    before = vector(module.state_dict())
    [part] = parts_of(90)
    local.train(wanted, module, as_only_shard(part, wanted.criterion()))
    return before, vector(module.state_dict())


# ---- the rate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_round_has_the_rate_after_as_many_steps_of_the_scheduler(number):
    before, after = stepped(objective(scheduler=halved), Local(1, 100, number, (3, 0)))
    assert np.allclose(after, before - RATE * 0.5**number * gradient(before), rtol=1e-12)


def test_a_scheduler_is_stepped_once_a_round():
    """Not once a step, of which a round has six, nor once an epoch."""
    algorithm = ParallelSGD(rounds=ROUNDS, epochs=2, shard_batch_size=30)
    first, *others = states(algorithm, parts_of(90), ROUNDS, objective(scheduler=halved))
    x = vector(first["weights"])
    for number, state in enumerate(others):
        for rows in orders(number, 30, 2):
            x = x - RATE * 0.5**number * gradient(x, rows)
        assert np.allclose(vector(state["weights"]), x, rtol=0, atol=1e-12)


def test_a_scheduler_that_changes_nothing_makes_no_difference():
    same = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda _: 1.0)
    one, other = (
        states(ParallelSGD(shard_batch_size=30), parts_of(90), ROUNDS, objective(scheduler=each))[-1]["weights"]
        for each in (None, same)
    )
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


# ---- the clipping ------------------------------------------------------------------------------------------------


def test_a_gradient_is_no_longer_than_max_grad_norm():
    before, after = stepped(objective(max_grad_norm=0.25), Local(1, 100, 0, (3, 0)))
    g = gradient(before)
    assert np.linalg.norm(g) > 0.5
    assert np.allclose(before - after, RATE * 0.25 * g / np.linalg.norm(g), rtol=1e-5)
    assert np.linalg.norm(before - after) == pytest.approx(RATE * 0.25, rel=1e-5)


def test_a_gradient_that_is_short_enough_stays_as_it_is():
    before, after = stepped(objective(max_grad_norm=100.0), Local(1, 100, 0, (3, 0)))
    assert np.allclose(after, before - RATE * gradient(before), rtol=1e-12)


def test_what_pulls_is_clipped_with_the_gradient():
    v, strength = np.array([3.0, -1.0, 0.0, 2.0, -5.0]), 4.0
    local = Local(1, 100, 0, (3, 0), toward(torch.from_numpy(v), strength))
    before, after = stepped(objective(max_grad_norm=0.25), local)
    g = gradient(before) + strength * (before - v)
    assert np.allclose(before - after, RATE * 0.25 * g / np.linalg.norm(g), rtol=1e-5)


def test_every_step_of_every_round_is_clipped():
    algorithm = ParallelSGD(rounds=ROUNDS, shard_batch_size=30)
    first, *others = states(algorithm, parts_of(90), ROUNDS, objective(max_grad_norm=0.5))
    x, clipped = vector(first["weights"]), []
    for number, state in enumerate(others):
        for rows in orders(number, 30, 1):
            g = gradient(x, rows)
            clipped.append(np.linalg.norm(g) > 0.5)
            x = x - RATE * g * min(1.0, 0.5 / (np.linalg.norm(g) + 1e-6))  # as torch has it
        assert np.allclose(vector(state["weights"]), x, rtol=0, atol=1e-12)
    assert all(clipped)
