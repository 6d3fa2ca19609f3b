"""Schedulers, when they step and what they know of the run; optimizers and their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torchmetrics import R2Score

from sparkdl import TorchRegressor
from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.group.world import World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from sparkdl.training.objective.optimizers import OPTIMIZERS, optimizer_factory
from tests.contracts import work

ROWS = 12
DATA = {"x": np.random.default_rng(0).normal(size=(ROWS, 3)), "y": np.arange(ROWS) % 2.0}
COLUMNS = Columns((InputColumn("x"),), InputColumn("y"))
SGD = partial(torch.optim.SGD, lr=1.0)


def objective(scheduler: Any, interval: str = "epoch") -> Objective:
    return Objective(partial(nn.Linear, 3, 1), nn.MSELoss(), SGD, scheduler, scheduler_interval=interval)


def rates(objective: Objective, losses: list[float]) -> list[float]:
    """The learning rate after each epoch of two steps."""
    replica, seen = Replicated().place(objective, World(), work.FEED), []
    replica.schedule(2, len(losses))
    for loss in losses:
        for _ in range(2):
            replica.optimizer.step()
            replica.apply()
        replica.end_epoch(loss)
        seen.append(replica.optimizer.param_groups[0]["lr"])
    return seen


HALVES = partial(lr_scheduler.StepLR, step_size=1, gamma=0.5)


@pytest.mark.parametrize(("interval", "expected"), [("epoch", [0.5, 0.25]), ("step", [0.25, 0.0625])])
def test_scheduler_steps_after_each_epoch_or_step(interval, expected) -> None:
    assert rates(objective(HALVES, interval), [1.0, 1.0]) == expected


def test_plateau_gets_the_loss() -> None:
    plateau = partial(lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.1)
    assert rates(objective(plateau), [3.0, 2.0, 2.5, 1.0]) == pytest.approx([1.0, 1.0, 0.1, 0.1])
    with pytest.raises(InvalidInput, match="scheduler is a ReduceLROnPlateau; expected schedulerInterval='epoch'"):
        rates(objective(plateau, "step"), [])
    message = "ReduceLROnPlateau with mode='min'; expected mode='max': a higher valid_r2 is better"
    with pytest.raises(InvalidInput, match=message):
        rates(replace(objective(plateau), metrics={"r2": R2Score()}, monitor="valid_r2"), [])


class Logged(lr_scheduler.ReduceLROnPlateau):
    """Appends each value that it gets to a file."""

    def __init__(self, optimizer: torch.optim.Optimizer, path: Path, mode: Any) -> None:
        super().__init__(optimizer, mode)
        self.path = path

    def step(self, metrics: Any, epoch: Any = None) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{metrics!r}\n")


def test_training_steps_the_scheduler_with_the_monitored_value(tmp_path) -> None:
    for monitor, mode in ((None, "min"), ("r2", "max")):
        path = tmp_path / mode
        watched = replace(objective(partial(Logged, path=path, mode=mode)), metrics={"r2": R2Score()}, monitor=monitor)
        history = InlineCluster().gang(Training(watched, 4, epochs=3), DATA, COLUMNS)[0].history
        assert [float(line) for line in path.read_text().split()] == [row[monitor or "loss"] for row in history]


def test_factory_gets_the_length_of_the_run() -> None:
    def schedule(optimizer: torch.optim.Optimizer, steps_per_epoch: int, epochs: int) -> Any:
        assert (steps_per_epoch, epochs) == (3, 2)
        return HALVES(optimizer)

    InlineCluster().gang(Training(objective(schedule, "step"), 4, epochs=2), DATA, COLUMNS)
    one = partial(lr_scheduler.OneCycleLR, max_lr=0.1)
    assert objective(one, "step").for_run(3, 2).open_scheduler(SGD([nn.Parameter(torch.ones(1))])).total_steps == 6
    fixed = objective(partial(one, total_steps=5))
    assert fixed.for_run(3, 2) is fixed
    partly = objective(partial(one, epochs=2), "step").for_run(3, 2)
    assert partly.open_scheduler(SGD([nn.Parameter(torch.ones(1))])).total_steps == 6


def test_schedule_of_the_run_s_length_is_not_prolonged(tmp_path) -> None:
    """Its state has the old length: torch fails after it, and a cosine rises again in silence."""
    checkpointer = Checkpointer(Checkpoints(str(tmp_path / "run"), run="a"), CheckpointInterval.of("1 epoch"))
    for schedule, message in ((HALVES, None), (partial(lr_scheduler.OneCycleLR, max_lr=0.1), "its epochs is 2")):
        first = Training(objective(schedule, "step"), 4, epochs=2, checkpointer=checkpointer)
        InlineCluster().gang(first, DATA, COLUMNS)
        with nullcontext() if message is None else pytest.raises(InvalidInput, match=f"{message}, expected 4"):
            assert len(InlineCluster().gang(replace(first, epochs=4), DATA, COLUMNS)[0].history) == 4
        checkpointer = Checkpointer(Checkpoints(str(tmp_path / "other"), run="b"), CheckpointInterval.of("1 epoch"))


@pytest.mark.parametrize(
    ("scheduler", "interval", "in_rounds", "message"),
    [
        (partial(lr_scheduler.OneCycleLR, max_lr=0.1), "epoch", False, "takes steps_per_epoch, and schedulerInterval"),
        (partial(lr_scheduler.OneCycleLR, max_lr=0.1), "step", True, "OneCycleLR, and rounds pass it no epochs and no"),
        (lr_scheduler.ReduceLROnPlateau, "epoch", True, "ReduceLROnPlateau, and rounds pass it no loss"),
        (lr_scheduler.ReduceLROnPlateau, "step", False, "expected schedulerInterval='epoch'"),
        (partial(lr_scheduler.ReduceLROnPlateau, mode="max"), "epoch", False, "expected mode='min': a lower loss is"),
    ],
)
def test_schedules_are_checked_before_anything_is_launched(scheduler, interval, in_rounds, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        objective(scheduler, interval).check_schedule(in_rounds=in_rounds)


def test_rounds_refuse_a_scheduler_that_needs_losses() -> None:
    def plateau(optimizer: torch.optim.Optimizer) -> Any:  # which hides its class
        return lr_scheduler.ReduceLROnPlateau(optimizer)

    with (
        InlineCluster().map_reduce(DATA, COLUMNS) as jobs,
        pytest.raises(InvalidInput, match="ReduceLROnPlateau, and rounds pass no loss to it"),
    ):
        Rounds(ParallelSGD(rounds=2), objective(plateau), max_rounds=2).run(jobs)


# ---- optimizers by name, class and factory, and their arguments ------------------------------------------------------


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
    replica = Replicated().place(objective, World(), work.FEED)
    weights, biases = replica.optimizer.param_groups
    assert [parameter.shape for group in (weights, biases) for parameter in group["params"]] == [(3, 2), (3,)]
    assert (weights["lr"], biases["weight_decay"]) == (0.5, 0.0)


def test_model_arguments() -> None:
    estimator = TorchRegressor(model=nn.Linear, modelArgs={"in_features": 2, "out_features": 1})
    assert estimator.objective().build().weight.shape == (1, 2)
    with pytest.raises(InvalidInput, match="model is a Linear, which is made already, and modelArgs is"):
        estimator.copy({estimator.model: nn.Linear(2, 1)}).objective()
