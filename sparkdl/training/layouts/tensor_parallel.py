"""Tensor parallelism: partners hold parts of the model's large layers, and compute on the same rows.

Of ``n`` partners, partner ``i`` has the part ``i`` of a planned layer ``y = x W^T + b``. With the operators of
``partner_operators``,

    columns    y_i = copied(x) W_i^T + b_i         W = [W_1; ...; W_n], by outputs
    rows       y = summed(x_i W_i^T) + b           W = [W_1, ..., W_n], by inputs
    batch      y = gathered(layer(cut(x)))         by rows of the batch

A layer by columns and a layer by rows make a pair, with an activation between: the pair sums once forward and once
backward, and partners hold a part of its activations. All other parameters are equal on all partners, and stay equal in
every bit, since partners draw the same random numbers. M. Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from sparkdl.cluster.group.mesh import grid, open_axes
from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Several
from sparkdl.io.weights import Slice, Slices
from sparkdl.training.layouts import Layout, Workers
from sparkdl.training.layouts.arithmetic import slow_attention
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.initial_weights import InitialWeights, check_init, check_init_field
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.slice_checks import check_no_tables, check_slices
from sparkdl.training.layouts.tensors.partner_operators import Partners
from sparkdl.training.layouts.tensors.plans import KINDS, PlannedLayer, planned_layers
from sparkdl.training.objective.loss import shapes
from sparkdl.training.objective.objective import Objective
from sparkdl.training.rng import forked


@dataclass(frozen=True)
class TensorParallel(CheckedFields, Layout):
    """Each worker holds a part of the layers in ``plan``, and all other layers.

    Attributes:
        size: workers of a replica, with consecutive ranks.
        plan: names of layers to ``"columns"``, ``"rows"`` or ``"batch"``, or a function of the model that returns such
            a mapping, as ``mlp_plan()``, ``attention_plan()`` and ``transformer_plan()`` return.
        init: where the initial weights come from, as for ``Sharded``.
    """

    size: Several
    plan: Any
    init: Any = None

    def _check(self) -> None:
        check_init_field("TensorParallel", self.init)
        if not (callable(self.plan) or isinstance(self.plan, Mapping)):
            raise InvalidInput(
                f"plan is {self.plan!r}; expected names of modules to {', '.join(KINDS)}, or a function of the model."
            )

    def multiple(self, size: int) -> int:
        """The workers of a replica."""
        return self.size

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        """Raise InvalidInput if the settings, the optimizer, a table or the plan do not fit."""
        check_no_tables(self, module)
        check_init(module, objective, self.init)
        check_slices(self, objective, module)
        tensor_slices(module, planned_layers(module, self.plan, self.size), 0, self.size)

    def place(self, objective: Objective, world: World, feed: Feed) -> ModuleReplica:
        """Build this worker's part of the model."""
        open_axes(world, grid({"replica": world.size // self.size, "tensor": self.size}, world.size))
        replicas, group = world.group("replica"), world.group("tensor")
        weights = InitialWeights.of(objective, world, self.init)
        check_no_tables(self, weights.module)
        check_slices(self, objective, weights.module)
        layers = planned_layers(weights.module, self.plan, self.size)
        slices = tensor_slices(weights.module, layers, group.rank, self.size)
        named = weights.module.named_parameters(remove_duplicate=False)
        values = weights.deal({name: slices.get(name) or Slice.whole(value.shape) for name, value in named})
        partners = Partners(group)
        parallelize(weights.fill(values), layers, partners, warn=world.rank == 0)
        draw_alike(group)
        return TensorParallelReplica(objective, weights.module, Workers(replicas, replicas, group), slices, partners)


class TensorParallelReplica(ModuleReplica):
    """This worker's part of a replica; the first partner reports."""

    def __init__(
        self, objective: Objective, module: nn.Module, workers: Workers, slices: Slices, partners: Partners
    ) -> None:
        super().__init__(objective, module, workers)
        self.reports = workers.partners.rank == 0
        self.slice_group = self.alike = workers.partners
        self._partners = partners
        self.hold(slices)

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Run forward and backward on one batch; return the local mean loss."""
        loss = super().gradients(batch, last=last)
        if last:
            self.bytes_per_step, self._partners.sent.count = self._partners.sent.count, 0
        return loss

    def evaluate(self, batch: Batch) -> Any:
        """The output for a batch; None if its weight is 0."""
        with slow_attention():
            output = super().evaluate(batch)
        self._partners.sent.count = 0
        return output


def tensor_slices(module: nn.Module, layers: Sequence[PlannedLayer], rank: int, size: int) -> Slices:
    """The slices of one partner, by the names of the parameters that are cut; a tied parameter has several names.

    Raises:
        InvalidInput: two layers share a parameter, and cut it differently or one of them does not.
    """
    slices: dict[str | int, Slice] = {}
    for layer in layers:
        part = module.get_submodule(layer.name)
        for key, value in () if layer.kind == "batch" else part.named_parameters(recurse=False):
            by_rows = (layer.kind == "rows") != isinstance(part, nn.Embedding)  # of the weight's second dimension
            if key == "weight" or not by_rows:
                slices[f"{layer.name}.{key}"] = _cut(tuple(value.shape), int(by_rows), rank, size)
    aliases: dict[int, set[Slice | None]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(value), set()).add(slices.get(name))
        if len(aliases[id(value)]) > 1:
            raise InvalidInput(
                f"{name} is the parameter of several layers, which plan cuts differently; expected one way for all, "
                "such as 'rows' for an embedding and 'columns' for the linear layer with its weight."
            )
    return slices


def parallelize(module: nn.Module, layers: Sequence[PlannedLayer], partners: Partners, *, warn: bool) -> None:
    """Let the planned layers of a module exchange with the partners."""
    if warn and not any(layer.paired or layer.kind == "batch" for layer in layers):
        warnings.warn(
            "plan has no pair of 'columns' and 'rows', so that each layer only adds exchanges; expected both among the "
            "children of one module.",
            stacklevel=2,
        )
    for layer in layers:
        part: Any = module.get_submodule(layer.name)
        if layer.kind == "batch":
            part.forward = partial(_on_own_rows, part, _without_hooks(part), partners)
        else:
            rows: Callable[..., Tensor] = _linear_rows if isinstance(part, nn.Linear) else _embedding_rows
            part.forward = partial(_columns if layer.kind == "columns" else rows, part, partners, layer.paired)


def draw_alike(partners: Group) -> None:
    """Seed the random numbers of all partners alike, as the first one."""
    seed: int = partners.gather(torch.randint(1 << 32, ()).item())[0]
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _columns(part: nn.Linear | nn.Embedding, partners: Partners, paired: bool, inputs: Tensor) -> Tensor:
    if isinstance(part, nn.Linear):
        output = F.linear(partners.copied(inputs), part.weight, part.bias)
    else:
        output = F.embedding(inputs, part.weight, part.padding_idx)
    return output if paired else partners.gathered(output, -1)


def _linear_rows(part: nn.Linear, partners: Partners, paired: bool, inputs: Tensor) -> Tensor:
    if inputs.shape[-1] != part.weight.shape[1]:  # whole inputs, not a partner's outputs
        inputs = partners.cut(inputs, -1)
    output = partners.summed(F.linear(inputs, part.weight))
    return output if part.bias is None else output + part.bias


def _embedding_rows(part: nn.Embedding, partners: Partners, paired: bool, inputs: Tensor) -> Tensor:
    rows = len(part.weight)
    local = inputs - partners.group.rank * rows
    absent = (local < 0) | (local >= rows)
    values = F.embedding(local.masked_fill(absent, 0), part.weight)
    hidden = absent if part.padding_idx is None else absent | (inputs == part.padding_idx)
    # A padding entry has its value and no gradient.
    values = torch.where(hidden.unsqueeze(-1), values.detach(), values).masked_fill(absent.unsqueeze(-1), 0.0)
    return partners.summed(values)


def _on_own_rows(part: nn.Module, original: nn.Module, partners: Partners, *inputs: Any) -> Tensor:
    if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
        raise InvalidInput(f"plan has a {type(part).__name__} with 'batch' and {shapes(inputs)}; expected one tensor.")
    original.training = part.training
    # Each partner has the gradient of its rows.
    weights = {name: partners.copied(value) for name, value in part.named_parameters()}
    seed = int(torch.randint(1 << 32, ())) + partners.group.rank  # partners go on with equal random numbers
    mine = partners.cut(inputs[0], 0)
    # A partner without rows runs on a copy of the first one, and returns no row. All partners take part in the cut.
    rows_in = mine if len(mine) else torch.cat([mine, inputs[0][:1].detach()])
    with forked(inputs[0].device):
        torch.manual_seed(seed)
        output = functional_call(original, weights, (rows_in,))
    if not isinstance(output, Tensor) or len(output) != len(rows_in):
        raise InvalidInput(
            f"plan has a {type(part).__name__} with 'batch', which returned {shapes(output)} for {len(rows_in)} "
            "rows; expected one tensor [rows, ...]."
        )
    return partners.gathered(output[: len(mine)], 0)


def _without_hooks(part: nn.Module) -> nn.Module:
    """A module that shares the parameters and children of another one, whose hooks run with the other one."""
    copied = copy.copy(part)
    copied._forward_hooks, copied._forward_pre_hooks = OrderedDict(), OrderedDict()
    return copied


def _cut(shape: tuple[int, ...], dim: int, rank: int, size: int) -> Slice:
    part = shape[dim] // size
    ranges = [range(length) for length in shape]
    ranges[dim] = range(rank * part, (rank + 1) * part)
    return Slice(shape, tuple(ranges))
