"""A whole model on one device: gradients, steps, calls of its sink, and memory."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective.objective import Objective
from tests.contracts import work

SGD = partial(torch.optim.SGD, lr=0.1)


def place(model: Any = work.Net, **options: Any) -> ModuleReplica:
    options = {"loss": nn.MSELoss(), "optimizer": SGD, "precision": "fp64", **options}
    return Replicated().place(Objective(work.Seeded(model), **options), World(), work.FEED)


def batch(rows: int = 12, weight_fraction: float = 1.0) -> Batch:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Batch((x,), x.sin().sum(1), None, None, rows, float(rows), weight_fraction, total=rows)


def tape(replica: ModuleReplica) -> list[Any]:
    """Set a sink that writes down its calls, and leaves the gradients where they are."""
    calls: list[Any] = []
    finish = partial(calls.append, "finish")
    replica.sink = SimpleNamespace(begin=lambda part: calls.append(("begin", part)), ready=calls.append, finish=finish)
    return calls


# ---- gradients --------------------------------------------------------------------------------------------------


def test_gradients_are_of_local_mean():
    replica, whole = place(), batch()
    mean = nn.functional.mse_loss(replica.module(*whole.inputs), whole.target)
    expected = torch.autograd.grad(mean, replica.parameters)
    loss = replica.gradients(whole)
    assert not loss.requires_grad
    assert loss.item() == mean.item()
    assert all(torch.equal(p.grad, g) for p, g in zip(replica.parameters, expected, strict=True))
    assert torch.equal(replica.output, replica.module(*whole.inputs))
    assert not replica.output.requires_grad


def test_loss_without_parameters_raises():
    replica = place(loss=lambda output, target: (output.detach() - target) ** 2)
    with pytest.raises(InvalidInput, match="does not depend on any trainable parameter"):
        replica.gradients(batch())


# ---- steps ------------------------------------------------------------------------------------------------------


def test_state_within_step_raises():
    replica = place()
    replica.gradients(batch(), last=False)
    with pytest.raises(InvalidInput, match="has an unused gradient"):
        replica.state_dict()
    replica.apply()
    assert replica.state_dict()["shared"]["scheduler"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": work.Unused}, "it lacks the model's spare.weight; it lacks the model's spare.bias"),
        (
            {"model": work.Classifier},
            r"its head.weight is \[1, 8\] float64, the model's is \[4, 8\] float64; its head.b",
        ),
        ({"model": work.Normalised}, "; and 4 more. Resume with the model"),
        ({"model": work.Frozen}, r"its optimizer has groups of \[4\] parameters, this training's of \[2\]"),
        ({"precision": "fp32"}, r"its hidden.weight is \[8, 3\] float64, the model's is \[8, 3\] float32"),
        ({"optimizer": torch.optim.Adam}, "its optimizer is SGD, this training's is Adam"),
        (
            {"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)},
            "its scheduler is None, this training's is StepLR",
        ),
    ],
)
def test_state_of_another_replica_raises_with_differences(options, message):
    replica, other = place(), place(**options)
    other.schedule(4, 1)
    before = {name: tensor.clone() for name, tensor in other.module.state_dict().items()}
    with pytest.raises(InvalidInput, match=message):
        other.load_state_dict(replica.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.module.state_dict().items())


# ---- the sink ---------------------------------------------------------------------------------------------------


def test_sink_gets_gradients_from_last_layer_to_first():
    replica = place()
    calls = tape(replica)
    replica.gradients(batch(), last=False)
    assert calls == []
    replica.gradients(batch(weight_fraction=0.25))
    begin, *ready, finish = calls
    assert (begin, finish) == (("begin", 0.25), "finish")
    assert ({*ready[:2]}, {*ready[2:]}) == ({2, 3}, {0, 1})


def test_empty_batch_skips_model_and_still_calls_sink():
    replica = place(partial(work.Stumbles, 0, 0))
    calls = tape(replica)
    loss = replica.gradients(batch(0, weight_fraction=0.0))
    assert (loss.item(), replica.output) == (0.0, None)
    assert all(parameter.grad is None for parameter in replica.parameters)
    assert calls == [("begin", 0.0), "finish"]


@pytest.mark.parametrize("has_sink", [False, True])
def test_replica_is_freed(has_sink):
    replica = place()
    if has_sink:
        tape(replica)
    replica.gradients(batch())
    replica.apply()
    left = [weakref.ref(each) for each in (replica, replica.module, replica.parameters[0])]
    del replica
    gc.collect()
    assert [reference() for reference in left] == [None] * 3
