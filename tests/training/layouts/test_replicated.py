"""A whole model on one device: its gradients, its steps, what it tells a sink, and that it goes away."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.training.layouts.replicated import Replicated, ReplicatedReplica
from sparkdl.training.objective import Objective
from tests.contracts import work

SGD = partial(torch.optim.SGD, lr=0.1)


def place(model: Any = work.Net, **options: Any) -> ReplicatedReplica:
    options = {"loss": nn.MSELoss(), "optimizer": SGD, "precision": "fp64", **options}
    return Replicated().place(Objective(work.Seeded(model), **options), World())


def batch(rows: int = 12, seed: int = 0, **options: Any) -> Batch:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=random, dtype=torch.float64)
    return Batch(
        (x,), x.sin().sum(1), None, None, rows, float(rows), **{"weight_fraction": 1.0, "total": rows, **options}
    )


def reference(replica: ReplicatedReplica, whole: Batch) -> list[Tensor]:
    loss = nn.functional.mse_loss(replica.module(*whole.inputs), whole.target)
    return list(torch.autograd.grad(loss, list(replica.parameters)))


class Sink:
    """Writes down what it is told, and leaves the gradients where they are."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, share: float) -> None:
        self.told.append(("begin", share))

    def ready(self, index: int) -> None:
        self.told.append(index)

    def finish(self) -> None:
        self.told.append("finish")


# ---- gradients --------------------------------------------------------------------------------------------------


def test_gradients_are_of_the_local_mean():
    replica, whole = place(), batch()
    expected = reference(replica, whole)
    loss = replica.gradients(whole)
    assert not loss.requires_grad
    assert loss.item() == nn.functional.mse_loss(replica.module(*whole.inputs), whole.target).item()
    assert all(torch.equal(p.grad, g) for p, g in zip(replica.parameters, expected, strict=True))
    assert torch.equal(replica.output, replica.module(*whole.inputs))
    assert not replica.output.requires_grad


@pytest.mark.parametrize("pieces", [2, 3, 20])
def test_gradients_of_pieces_add_up(pieces):
    replica, whole = place(), batch()
    expected = reference(replica, whole)
    for index, piece in enumerate(whole.split(pieces)):
        replica.gradients(piece, last=index == pieces - 1)
    for parameter, gradient in zip(replica.parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-15)


def test_a_batch_that_weighs_nothing_is_not_shown_to_the_model():
    replica = place(partial(work.Stumbles, 0, 0))
    loss = replica.gradients(batch(0))
    assert (loss.item(), replica.output) == (0.0, None)
    assert all(parameter.grad is None for parameter in replica.parameters)


def test_a_loss_that_depends_on_nothing_is_refused():
    replica = place(loss=lambda output, target: (output.detach() - target) ** 2)
    with pytest.raises(InvalidInput, match="does not depend on any trainable parameter"):
        replica.gradients(batch())


def test_only_what_is_trained_is_a_parameter():
    replica = place(work.Frozen)
    assert [tuple(parameter.shape) for parameter in replica.parameters] == [(1, 8), (1,)]
    assert len(place(work.Tied).parameters) == 3
    assert {parameter.dtype for parameter in replica.module.parameters()} == {torch.float64}
    assert replica.module.training


def test_half_precision_is_for_the_arithmetic_alone():
    replica = place(precision="bf16")
    half = batch()
    whole = Batch(tuple(x.float() for x in half.inputs), half.target.float(), None, None, 12, 12.0, 1.0)
    expected = reference(replica, whole)
    replica.gradients(whole)
    assert replica.output.dtype == torch.bfloat16
    for parameter, gradient in zip(replica.parameters, expected, strict=True):
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert 0 < (parameter.grad - gradient).norm() < 0.05 * gradient.norm()


# ---- steps ------------------------------------------------------------------------------------------------------


def test_a_step_clips_steps_and_drops_the_gradients():
    scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    replica = place(max_grad_norm=0.01, scheduler=scheduler)
    before = [parameter.detach().clone() for parameter in replica.parameters]
    replica.gradients(batch())
    replica.apply()
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(replica.parameters, before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert replica.optimizer.param_groups[0]["lr"] == 0.05
    assert all(parameter.grad is None for parameter in replica.parameters)


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), torch.optim.Adam])
def test_a_restored_replica_goes_on_with_the_same_bits(optimizer):
    scheduler = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    replica = place(work.Normalised, optimizer=optimizer, scheduler=scheduler)
    steps = [batch(seed=seed) for seed in range(6)]
    for step in steps[:3]:
        replica.gradients(step)
        replica.apply()
    state = {name: _copied(value) for name, value in replica.state_dict().items()}
    other = place(partial(work.Normalised), optimizer=optimizer, scheduler=scheduler)
    other.load_state_dict(state)
    for each in (replica, other):
        for step in steps[3:]:
            each.gradients(step)
            each.apply()
    for ours, theirs in zip(replica.module.state_dict().values(), other.module.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert replica.scheduler.get_last_lr() == other.scheduler.get_last_lr()


def test_a_state_is_taken_between_steps():
    replica = place()
    replica.gradients(batch(), last=False)
    with pytest.raises(InvalidInput, match="a gradient that no step has used"):
        replica.state_dict()
    replica.apply()
    assert replica.state_dict()["alike"]["scheduler"] is None


class Counting(work.Net):
    """Counts its passes in buffers that are no part of the model's file."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("passes", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("seen", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.passes += 1
        self.seen = torch.cat([self.seen, x[0, :1].float().detach()])
        return super().forward(x)


def test_buffers_that_are_not_persistent_belong_to_the_state():
    replica, other = place(Counting), place(Counting)
    for seed in range(3):
        replica.gradients(batch(seed=seed))
        replica.apply()
    assert "seen" not in replica.module.state_dict()
    other.load_state_dict(unpack_state(pack_state(replica.state_dict())))
    assert other.module.inner.passes == 3
    assert torch.equal(other.module.seen, replica.module.seen)
    assert dict(other.module.named_buffers()).keys() == {"inner.passes", "seen"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": work.Unused}, "it has no spare.weight, which the model has; it has no spare.bias, which the model"),
        (
            {"model": work.Classifier},
            r"its head.weight is \[1, 8\] float64, the model's is \[4, 8\] float64; its head.b",
        ),
        ({"model": work.Normalised}, "; and 3 more. Train with the model"),
        ({"model": work.Frozen}, r"its optimizer has groups of \[4\] parameters, this training's of \[2\]"),
        ({"precision": "fp32"}, r"its hidden.weight is \[8, 3\] float64, the model's is \[8, 3\] float32"),
        ({"optimizer": torch.optim.Adam}, "its optimizer is SGD, this training's is Adam"),
        (
            {"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)},
            "its scheduler is None, this training's is StepLR",
        ),
    ],
)
def test_the_state_of_another_replica_is_refused_by_what_differs(options, said):
    replica, other = place(), place(**options)
    before = {name: tensor.clone() for name, tensor in other.module.state_dict().items()}
    with pytest.raises(InvalidInput, match=said):
        other.load_state_dict(replica.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.module.state_dict().items())


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


# ---- the sink ---------------------------------------------------------------------------------------------------


def test_the_sink_hears_of_each_gradient_from_the_last_layer_to_the_first():
    replica = place()
    replica.sink = sink = Sink()
    replica.gradients(batch(weight_fraction=0.25))
    first, *ready, last = sink.told
    assert (first, last) == (("begin", 0.25), "finish")
    assert sorted(ready) == [0, 1, 2, 3]
    assert {ready[0], ready[1]} == {2, 3}


def test_the_sink_hears_nothing_of_pieces_but_the_last():
    replica = place()
    replica.sink = sink = Sink()
    first, second = batch().split(2)
    replica.gradients(first, last=False)
    assert sink.told == []
    replica.gradients(second)
    assert len(sink.told) == 6


def test_the_sink_hears_of_batches_that_weigh_nothing():
    replica = place()
    replica.sink = sink = Sink()
    replica.gradients(batch(0, weight_fraction=0.0))
    assert sink.told == [("begin", 0.0), "finish"]


def test_a_parameter_without_a_gradient_is_not_ready():
    replica = place(work.Unused)
    replica.sink = sink = Sink()
    replica.gradients(batch())
    unused = [index for index, parameter in enumerate(replica.parameters) if parameter.grad is None]
    assert len(unused) == 2
    assert not {*unused} & {*sink.told}


# ---- afterwards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heard", [False, True])
def test_a_replica_is_freed(heard):
    replica = place()
    if heard:
        replica.sink = Sink()
    replica.gradients(batch())
    replica.apply()
    left = [weakref.ref(each) for each in (replica, replica.module, replica.parameters[0])]
    del replica
    gc.collect()
    assert [reference() for reference in left] == [None] * 3
