"""Layouts for tests: one cuts tensors by rows over the workers, in the other one two workers run on the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sparkdl.cluster.group.mesh import grid, open_axes
from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Batch, Input, arguments
from sparkdl.io.fields import CheckedFields
from sparkdl.io.weights import Slice
from sparkdl.training.layouts import Layout, Workers
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Rowwise(CheckedFields, Layout):
    """All n workers hold one replica: worker r has the rows r, r + n, ... of each tensor, and all scalars."""

    def place(self, objective: Objective, world: World, feed: Feed) -> RowwiseReplica:
        module = objective.build(world.device)
        # Each worker has drawn other weights.
        for tensor in (*module.parameters(), *module.buffers()):
            world.group().broadcast_(tensor.detach())
        parts: dict[int, nn.Parameter] = {}
        slices: dict[str, Slice] = {}
        for name, value in [*module.named_parameters(remove_duplicate=False)]:
            part = rows(tuple(value.shape), world.rank, world.size)
            kept = nn.Parameter(value.detach()[part.index].clone(), requires_grad=value.requires_grad)
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, parts.setdefault(id(value), kept))
            slices |= {name: part} if part.shape else {}
        return RowwiseReplica(objective, module, world, feed, slices)


def rows(shape: tuple[int, ...], rank: int, size: int) -> Slice:
    return Slice(shape, (range(rank, shape[0], size), *map(range, shape[1:])) if shape else ())


class RowwiseReplica(ModuleReplica):
    lockstep = True

    def __init__(
        self, objective: Objective, module: nn.Module, world: World, feed: Feed, slices: dict[str, Slice]
    ) -> None:
        super().__init__(objective, module, Workers(Group(), world.group()), feed)
        self.slice_group, self.slices = world.group(), slices
        self._gathered: dict[str, Tensor] = {}

    def run(self, inputs: Iterable[Input]) -> Any:
        self._gathered = {name: self._whole(name, value) for name, value in self.module.named_parameters()}
        return functional_call(self.module, self._gathered, tuple(arguments(inputs)))

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        loss = super().gradients(batch, last=last)
        gradients = {name: value.grad if batch.weight else None for name, value in self._gathered.items()}
        used = torch.tensor([gradient is not None for gradient in gradients.values()]).long()
        self.slice_group.sum_(used)
        for (name, gradient), count in zip(gradients.items(), used.tolist(), strict=True):
            if count:
                mine = torch.zeros_like(self._gathered[name]) if gradient is None else gradient.to_dense()
                self._add(name, mine * batch.weight_fraction)
        return loss

    def _whole(self, name: str, value: nn.Parameter) -> Tensor:
        whole = value.detach().clone()
        if name in self.slices:
            group = self.slice_group
            whole = value.new_empty(self.slices[name].shape)
            for rank, part in enumerate(group.all_to_all_rows([value.detach()] * group.size)):
                whole[rows(tuple(whole.shape), rank, group.size).index] = part
        return whole.requires_grad_(value.requires_grad)

    def _add(self, name: str, gradient: Tensor) -> None:
        value, group = self.module.get_parameter(name), self.slice_group
        parts = [gradient[rows(tuple(gradient.shape), rank, group.size).index] for rank in range(group.size)]
        received = group.all_to_all_rows([part.reshape(-1, *gradient.shape[1:]) for part in parts])
        summed = torch.stack(received).sum(0).view_as(value)
        value.grad = summed if value.grad is None else value.grad + summed


@dataclass(frozen=True)
class Together(CheckedFields, Layout):
    """Two neighbours hold a whole replica each, and run on the rows of both; the first of them reports."""

    def place(self, objective: Objective, world: World, feed: Feed) -> ModuleReplica:
        pairs = grid({"replica": world.size // 2, "pair": 2}, world.size)
        open_axes(world, pairs)
        others = world.group("replica")
        replica = ModuleReplica(objective, objective.build(world.device), Workers(others, others, world.group("pair")))
        replica.reports = world.group("pair").rank == 0
        for tensor in replica.tensors:
            world.group().broadcast_(tensor)
        return replica

    def multiple(self, size: int) -> int:
        return 2
