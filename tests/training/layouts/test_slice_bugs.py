"""Faults that a review of sharded models found, each with what happened."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.training.layouts.initial_weights import check_init
from sparkdl.training.layouts.pipelined import Pipelined
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.shards.units import units_of
from sparkdl.training.layouts.tensor_parallel import TensorParallel
from sparkdl.training.objective.optimizers import check_elementwise
from sparkdl.training.strategies.local_sgd import LocalSGD
from tests.contracts import work
from tests.contracts.layout_contract import assert_close, resumable, resume
from tests.contracts.strategy_contract import SCHEMA, Case, numbers
from tests.results import merged

EACH_CHILD = Sharded(units=("*",))


def test_replicas_that_differ_resumed_from_other_slices(pair, four, tmp_path):
    """Rank 3 of four workers took the slices of rank 0 of two, of the same shape."""
    strategy = LocalSGD(every=2)
    settings = {"model": work.Net, "strategy": strategy}
    resume(pair, resumable(tmp_path / "run", "momentum", EACH_CHILD, **settings, epochs=1))
    layout = replace(EACH_CHILD, replicas=2)
    with pytest.raises(InvalidInput, match="slices of other workers; expected the numWorkers and the layout"):
        resume(four, resumable(tmp_path / "run", "momentum", layout, **settings, epochs=2))


class Rebinds:
    """A callback that gives a parameter other memory, as torch.nn.utils.vector_to_parameters does."""

    def on_step(self, run: Any) -> None:
        for value in run.parameters.values():
            value.data = value.data / 2


def test_slices_with_other_memory_were_not_in_the_model(pair):
    """Passes went on with the earlier memory, and optimizer and result with the new one."""
    case = Case(batch_size=12, epochs=2)
    trainings = (replace(case.training(layout=one), callbacks=(Rebinds(),)) for one in (Replicated(), EACH_CHILD))
    expected, actual = (merged(pair.gang(training, numbers(), case.columns())) for training in trainings)
    assert_close(actual, expected)


class Calls:
    """A callback that runs the model."""

    def on_step(self, run: Any) -> None:
        run.module(torch.zeros(1, 3, dtype=torch.float64))


def test_a_callback_that_called_the_model_waited_for_the_others(pair):
    training = replace(Case().training(layout=EACH_CHILD), callbacks=(Calls(),))
    with pytest.raises(InvalidInput, match="a callback called Net, whose parameters are slices"):
        pair.gang(training, numbers(), Case().columns())


class Shared(nn.Module):
    """Two layers with one buffer, and a parameter with an attribute that the optimizer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)
        self.first.register_buffer("offset", torch.rand(4))
        self.second.register_buffer("offset", self.first.offset)
        self.first.weight.slow = True

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(torch.tanh(self.first(x)) + self.second.offset)
        return output.squeeze(-1)


def by_attribute(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    slow = [one for one in parameters if getattr(one, "slow", False)]
    assert slow
    others = [one for one in parameters if not getattr(one, "slow", False)]
    return torch.optim.SGD([{"params": slow, "lr": 0.001}, {"params": others}], lr=0.1)


def test_shared_buffers_and_attributes_of_parameters_were_lost(pair):
    case = Case(Shared, optimizer=by_attribute, batch_size=12, epochs=2)
    results = (pair.gang(case.training(layout=one), numbers(), case.columns()) for one in (Replicated(), EACH_CHILD))
    expected, actual = map(merged, results)
    assert_close(actual, expected)
    assert torch.equal(actual["first.offset"], actual["second.offset"])


def test_a_worker_without_rows_failed_in_batch_normalisation(pair):
    """It ran on a spare row, and a single row has no variance."""
    data, case = numbers(), Case(work.Normalised, batch_size=24, epochs=2)
    tables = [
        pa.table({name: list(values[part]) for name, values in data.items()}, schema=SCHEMA)
        for part in (slice(0, 0), slice(0, 48))
    ]
    layouts = (Replicated(), EACH_CHILD)
    expected, actual = (merged(pair.gang(case.training(layout=one), tables, case.columns())) for one in layouts)
    assert_close(actual, expected)


def test_modules_with_tied_weights_were_not_initialised_alone(pair):
    case = Case(work.Tied, epochs=1)
    weights = merged(pair.gang(case.training(layout=Sharded(init="modules")), numbers(), case.columns()))
    assert torch.equal(weights["first.weight"], weights["second.weight"])
    work.Tied().load_state_dict({name: value.float() for name, value in weights.items()})


class Late(nn.Sequential):
    """A model that initialises its layers itself, as GPTs do."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.Linear(4, 1))
        self.apply(normal)


def normal(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        nn.init.normal_(part.weight, std=0.02)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Late, r"0, a Linear, has parameters .* or that the model writes after it: weight"),
        (Bare, "the model, a Bare, has parameters and no reset_parameters"),
        (nn.Linear(3, 1), "model is a module, which has weights"),
    ],
)
def test_weights_that_modules_alone_would_not_have_raise(model, message):
    objective = Case(model).training().objective if isinstance(model, type) else Case().training().objective
    objective = replace(objective, model=model)
    with pytest.raises(InvalidInput, match=message):
        check_init(objective.build(parameters=False), objective, "modules")


def test_a_function_initialises_each_module(pair):
    case = Case(partial(Flat, Late), epochs=1, optimizer=partial(torch.optim.SGD, lr=0.0))
    weights = merged(pair.gang(case.training(layout=Sharded(init=normal)), numbers(), case.columns()))
    assert 0 < weights["model.0.weight"].abs().max() < 0.1
    with pytest.raises((InvalidInput, WorkerFailed), match="init did not write scale of a Bare"):
        Sharded(init=normal).place(replace(case.training().objective, model=Bare), World(), work.FEED)


class Flat(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.model = make()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model(x)
        return output.squeeze(-1)


def test_a_unit_within_a_later_unit_came_after_it():
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.decoder = nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, 4, bias=False)})
            self.outer = nn.Sequential(self.decoder["head"], nn.Linear(4, 4))
            self.decoder["head"].weight = self.embed.weight

    model = Decoder()
    names = {id(part): name for name, part in model.named_modules()}
    groups = [[names[id(part)] for part in unit] for unit in units_of(model, ("embed", "outer", "decoder.head"))]
    assert groups[-1] == ["outer"] or len(groups) == 1


@pytest.mark.parametrize("name", ["Adafactor", "Muon", "LBFGS"])
def test_optimizers_that_need_whole_tensors_raise(name):
    with pytest.raises(InvalidInput, match=r"other elements of its tensor|requires a closure"):
        check_elementwise(partial(getattr(torch.optim, name), lr=0.1))


def test_an_optimizer_that_cannot_be_checked_is_a_warning():
    with pytest.warns(RuntimeWarning, match="optimizer cannot be checked on small tensors"):
        check_elementwise(partial(torch.optim.AdamW, capturable=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": "blocks"}, "expected a Sequence"),
        ({"units": [3]}, "a list of module classes"),
        ({"init": "module"}, "expected None, 'modules' or a function"),
        ({"offload": True, "replicas": 2}, "expected one of the two"),
    ],
)
def test_fields_that_do_not_fit_raise(settings, message):
    with pytest.raises(InvalidInput, match=message):
        Sharded(**settings)


@pytest.mark.parametrize("make", [partial(TensorParallel, 2, {"head": "rows"}), partial(Pipelined, 2)])
def test_an_unknown_init_was_taken_for_modules(make):
    with pytest.raises(InvalidInput, match="expected None, 'modules' or a function"):
        make(init="module")


def test_scalars_and_sparse_gradients_raise():
    objective = Case().training().objective
    scalar = nn.Linear(3, 1)
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    for module, message in ((scalar, "scale are scalars"), (work.Lookup(), "has sparse gradients")):
        with pytest.raises(InvalidInput, match=message):
            Sharded().check(objective, module, 2)
    assert np.isfinite(numbers()["x"]).all()
