"""Faults that reviews of layouts found, each with what happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from sparkdl.cluster.group.world import Group, World
from sparkdl.cluster.inline import InlineCluster
from sparkdl.data.batch import Batch
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.arithmetic import clip
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective
from tests.contracts import work
from tests.contracts.strategy_contract import ROWS, Case, numbers
from tests.contracts.together import Together

SPARSE = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def test_clipping_without_a_dense_gradient_raised() -> None:
    """torch refuses an empty list: a step without rows, or a model of sparse embeddings alone, ended the fit."""
    clip([], 1.0, Group())
    module = work.new_model(Case(work.Lookup).training()).double()
    x = torch.from_numpy(numbers()["x"])
    module(x).sum().backward()
    gradients = [one.grad for one in module.parameters()]
    dense = [nn.Parameter(torch.zeros_like(one)) for one in module.parameters()]
    for parameter, gradient in zip(dense, gradients, strict=True):
        parameter.grad = gradient.to_dense()
    clip_grad_norm_(dense, 0.5)
    clip(gradients, 0.5, Group())
    for parameter, gradient in zip(dense, gradients, strict=True):
        torch.testing.assert_close(gradient.to_dense(), parameter.grad, rtol=0, atol=1e-14)
    rows = numbers() | {"weight": np.where(np.arange(ROWS) < 9, 0.0, 1.0)}
    case = Case(batch_size=1, weight="weight", max_grad_norm=1.0, epochs=1)
    InlineCluster().gang(case.training(), rows, case.columns())


class Freezes:
    """A callback that freezes the bias of the last layer."""

    def on_step(self, run: Any) -> None:
        run.module.head.bias.requires_grad_(False)


def test_clipping_counted_parameters_by_their_present_use() -> None:
    """A callback that froze a parameter ended the fit, or shifted the names of all others."""
    case = Case(batch_size=12, max_grad_norm=0.1, epochs=2)
    training = case.training()
    training = Training(training.objective, 12, 2, callbacks=(Freezes(),))
    (trained,) = InlineCluster().gang(training, numbers(), case.columns())
    assert len(trained.history) == 2


class Silent(work.Net):
    """Returns nothing in evaluation."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) if self.training else None


def test_model_without_an_output_in_evaluation_passed_in_silence() -> None:
    """None meant that another worker has the output: validation counted no row, and the fit succeeded."""
    objective = Objective(work.Seeded(Silent), nn.MSELoss(), precision="fp64")
    columns = Case().columns()
    with pytest.raises(InvalidInput, match=r"the model returned NoneType for 32 rows; a regressor's model returns"):
        InlineCluster().gang(Training(objective, 12, kind="regressor"), numbers(), columns)


class Counting(torch.optim.SGD):
    """Keeps a number of its own beside the states of parameters."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.state["steps"] = self.state.get("steps", 0) + 1


def test_state_of_an_optimizer_had_only_dicts() -> None:
    objective = Objective(work.Seeded(work.Net), nn.MSELoss(), partial(Counting, lr=0.1), precision="fp64")
    replica = Replicated().place(objective, World(), work.FEED)
    x = torch.from_numpy(numbers()["x"])
    replica.gradients(Batch((x,), x.sum(1), None, None, ROWS, float(ROWS), 1.0, total=ROWS))
    replica.apply()
    assert replica.state_dict()["shared"]["optimizer"]["state"]["steps"] == 1


class Reads:
    """A callback of rank 0 alone that reads the module in each step."""

    every_rank = False

    def on_step(self, run: Any) -> None:
        assert len([*run.module.parameters()]) == 2


def test_watching_a_callback_failed_with_sparse_momenta(pair) -> None:
    """A sparse tensor has no address, by which the state before and after a call was compared."""
    case = Case(work.Lookup, optimizer=SPARSE, batch_size=12, epochs=1)
    training = case.training()
    pair.gang(Training(training.objective, 12, callbacks=(Reads(),)), numbers(), case.columns())


@dataclass(frozen=True)
class Longest:
    """Pads rows to the largest whole number of their batch, which differs between workers."""

    def __call__(self, inputs: tuple[Any, ...], target: Tensor | None) -> tuple[Any, Tensor | None]:
        (x,) = inputs
        width = 3 + int(x[:, 1].max() > 50)
        return (nn.functional.pad(x, (0, width - 3)),), target


def test_partners_with_rows_of_other_lengths_ended_without_a_cause(pair) -> None:
    """The collective wrote garbage, and ended the process of the other worker."""
    data = numbers()
    data["x"][0, 1] = 100.0  # of the first worker
    case = Case(batch_size=ROWS, epochs=1)
    objective = Objective(work.Seeded(work.Net), nn.MSELoss(), precision="fp64")
    training = Training(objective, ROWS, layout=Together(), collate=Longest())
    with pytest.raises(InvalidInput, match=r"have rows of the kinds .*; expected equal ones. Let collate pad"):
        pair.gang(training, data, case.columns())


def test_partner_without_rows_takes_the_shapes_of_collate(pair) -> None:
    """``collate`` sees no batch without rows, so that the shapes of the two partners differed."""
    data = numbers(5) | {"held": np.arange(5) < 2}
    columns = replace(Case().columns(), validation=InputColumn("held", "bool"))
    objective = Objective(work.Seeded(partial(work.Net, 4)), nn.MSELoss(), precision="fp64")
    training = Training(objective, 1, layout=Together(), collate=Wider())
    results = pair.gang(training, data, columns)
    assert np.isfinite(results[0].history[-1]["valid_loss"])


@dataclass(frozen=True)
class Wider:
    """Adds a column."""

    def __call__(self, inputs: tuple[Any, ...], target: Tensor | None) -> tuple[Any, Tensor | None]:
        return (nn.functional.pad(inputs[0], (0, 1)),), target
