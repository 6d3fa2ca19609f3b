"""The outer update is torch's SGD, and the server's step of federated averaging."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.training.strategies.outer_update import outer_update


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("nesterov", [False, True])
def test_outer_update_is_a_step_of_torch_sgd(nesterov):
    settings = {"lr": 0.7, "momentum": 0.9, "nesterov": nesterov}
    parameter = nn.Parameter(normal(5))
    optimizer = torch.optim.SGD([parameter], **settings)
    w, velocity = parameter.detach().clone(), 0.0
    for delta in normal(6, 5):
        w, velocity = outer_update(w, delta, velocity, **settings)
        parameter.grad = delta
        optimizer.step()
        torch.testing.assert_close(w, parameter.detach(), rtol=0, atol=1e-14)


def test_arguments_stay_and_results_are_new():
    w, delta, velocity = arguments = normal(3, 4)
    before = arguments.clone()
    step = partial(outer_update, lr=0.3, momentum=0.5)
    moved, after = step(w, delta, velocity)
    assert torch.equal(arguments, before)
    # The server's step of federated averaging, bit-identical.
    assert torch.equal(after, 0.5 * velocity + delta)
    assert torch.equal(moved, w - 0.3 * after)
    mean, alias = outer_update(w, w - delta, lr=1.0, momentum=0.0)
    torch.testing.assert_close(mean, delta)
    assert alias.data_ptr() != delta.data_ptr()
