"""Optimizers by name, class and factory, and their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl import TorchRegressor
from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective import Objective
from sparkdl.training.optimizers import OPTIMIZERS, optimizer_factory


def made(optimizer: Any, rate: float | None = None, **arguments: Any) -> torch.optim.Optimizer:
    made = optimizer_factory(optimizer, rate, arguments)([nn.Parameter(torch.zeros(1))])
    assert isinstance(made, torch.optim.Optimizer)
    return made


def by_hand(parameters: Iterable[nn.Parameter], lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def of_one_rate(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return by_hand(parameters)


@pytest.mark.parametrize("optimizer", ["adamw", torch.optim.AdamW, partial(torch.optim.AdamW, betas=(0.5, 0.9))])
def test_name_class_and_factory_take_arguments(optimizer) -> None:
    adamw = made(optimizer, 0.25, weight_decay=0.125)
    assert type(adamw) is torch.optim.AdamW
    assert (adamw.defaults["lr"], adamw.defaults["weight_decay"]) == (0.25, 0.125)
    assert made(optimizer).defaults["lr"] == 1e-3
    assert (made(by_hand).defaults["lr"], made(by_hand, 0.25).defaults["lr"]) == (0.5, 0.25)
    assert {"sgd", "adam", "adamw", "rmsprop", "lbfgs"} <= {*OPTIMIZERS}


@pytest.mark.parametrize(
    ("optimizer", "rate", "arguments", "message"),
    [
        (partial(torch.optim.SGD, lr=0.1), 0.2, {}, "optimizer binds lr=0.1 already, and learningRate gives lr=0.2"),
        (partial(torch.optim.SGD, momentum=0.1), None, {"momentum": 0.2}, "optimizerArgs gives momentum=0.2"),
        ("sgd", 0.1, {"lr": 0.2}, "learningRate is 0.1 and optimizerArgs has lr=0.2; expected one"),
        (
            "sgd",
            None,
            {"decay": 0.2},
            "optimizerArgs gives decay=0.2, which optimizer does not take; expected lr, momentum",
        ),
        (of_one_rate, 0.2, {}, "lr=0.2, which optimizer does not take; expected no arguments with this factory"),
    ],
)
def test_arguments_that_the_optimizer_has_or_does_not_take(optimizer, rate, arguments, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        optimizer_factory(optimizer, rate, arguments)
    with pytest.raises(InvalidInput, match=message):
        TorchRegressor(
            model=partial(nn.Linear, 1, 1), optimizer=optimizer, learningRate=rate, optimizerArgs=arguments
        ).objective()


def test_factory_of_parameter_groups_gets_names() -> None:
    def decayed(named_parameters: list[tuple[str, nn.Parameter]], lr: float) -> torch.optim.Optimizer:
        groups = {True: list[nn.Parameter](), False: list[nn.Parameter]()}
        for name, parameter in named_parameters:
            groups[name.endswith("bias")].append(parameter)
        return torch.optim.AdamW([{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0}], lr=lr)

    objective = Objective(partial(nn.Linear, 2, 3), nn.MSELoss(), optimizer_factory(decayed, 0.5, {}))
    replica = Replicated().place(objective, World())
    weights, biases = replica.optimizer.param_groups
    assert [parameter.shape for group in (weights, biases) for parameter in group["params"]] == [(3, 2), (3,)]
    assert (weights["lr"], biases["weight_decay"]) == (0.5, 0.0)


def test_model_arguments() -> None:
    estimator = TorchRegressor(model=nn.Linear, modelArgs={"in_features": 2, "out_features": 1})
    assert estimator.objective().build().weight.shape == (1, 2)
    with pytest.raises(InvalidInput, match="model is a Linear, which is made already, and modelArgs is"):
        estimator.copy({estimator.model: nn.Linear(2, 1)}).objective()
