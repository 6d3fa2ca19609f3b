"""Two layouts at once: a layout over the parts of layers that another layout cuts.

    Mesh(Sharded(), TensorParallel(2, plan))             slices of the parts, over workers with other rows
    Mesh(Pipelined(2), TensorParallel(2, plan))          stages of the parts, over workers with the same rows

``TensorParallel`` cuts first, and the outer layout takes its parts for whole tensors: a slice of a slice is a slice.
The ranks form the grid replica x shard or stage x tensor. Neighbours on the last axis have consecutive ranks, so that
the most frequent exchanges stay within a host.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sparkdl.cluster.group.mesh import grid, open_axes
from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields
from sparkdl.training.layouts import Layout, Workers
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.initial_weights import InitialWeights, check_init
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.pipelined import Pipelined, PipelinedReplica
from sparkdl.training.layouts.sharded import Sharded, ShardedReplica
from sparkdl.training.layouts.slice_checks import check_no_tables, check_slices
from sparkdl.training.layouts.tensor_parallel import TensorParallel, draw_alike, parallelize, tensor_slices
from sparkdl.training.layouts.tensors.partner_operators import Partners
from sparkdl.training.layouts.tensors.plans import planned_layers
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Mesh(CheckedFields, Layout):
    """``Sharded`` or ``Pipelined`` over ``TensorParallel``.

    Attributes:
        outer: ``Sharded``, or ``Pipelined``; its ``init`` says where the initial weights come from.
        inner: ``TensorParallel``, without an ``init``.
    """

    outer: Sharded | Pipelined
    inner: TensorParallel

    def _check(self) -> None:
        if self.inner.init is not None:
            raise InvalidInput("Mesh.inner has init; expected it in Mesh.outer.")

    def multiple(self, size: int) -> int:
        """The workers of a replica, and with ``Sharded`` of one worker's place in each of the replicas."""
        return self.outer.multiple(size) * self.inner.size

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        """Raise InvalidInput if one of the layouts does not fit."""
        check_no_tables(self, module)
        check_init(module, objective, self.outer.init)
        self._check_module(objective, module)

    def _check_module(self, objective: Objective, module: nn.Module) -> None:
        check_no_tables(self, module)
        self.outer.check_module(objective, module)
        check_slices(self, objective, module)
        tensor_slices(module, planned_layers(module, self.inner.plan, self.inner.size), 0, self.inner.size)

    def place(self, objective: Objective, world: World, feed: Feed) -> ModuleReplica:
        """Build this worker's part of the model."""
        workers = self._open(world)
        weights = InitialWeights.of(objective, world, self.outer.init)
        self._check_module(objective, weights.module)
        layers = planned_layers(weights.module, self.inner.plan, self.inner.size)
        partners = Partners(world.group("tensor"))
        parts = tensor_slices(weights.module, layers, partners.group.rank, partners.group.size)
        outer = self.outer  # rank 0 times the layers before partners exchange in them
        outer = outer.with_split(objective, weights, feed) if isinstance(outer, Pipelined) else outer
        parallelize(weights.module, layers, partners, warn=world.rank == 0)
        draw_alike(partners.group)
        replica = outer.build(objective, weights, parts, workers, feed)
        replica.alike, replica.slice_group = partners.group, world.group("model")
        replica.reports = replica.reports and partners.group.rank == 0
        names = (name for name, _ in weights.module.named_parameters())
        replica.copies = {name: partners.group.size for name in names if name not in parts}
        if isinstance(replica, (ShardedReplica, PipelinedReplica)):
            partners.sent = replica.sent
        return replica

    def _open(self, world: World) -> Workers:
        """Open the axes, and return the groups of workers with which this worker exchanges tensors."""
        tensor, staged = self.inner.size, isinstance(self.outer, Pipelined)
        outer = self.outer.stages if isinstance(self.outer, Pipelined) else world.size // tensor // self.outer.replicas
        sizes = {"replica": world.size // (outer * tensor), "stage" if staged else "shard": outer, "tensor": tensor}
        axes = grid(sizes, world.size)
        model = outer * tensor
        axes["model"] = [tuple(range(first, first + model)) for first in range(0, world.size, model)]
        axes["rows"] = [tuple(range(first, world.size, tensor)) for first in range(tensor)]
        open_axes(world, axes)
        replicas = world.group("replica")
        if staged:
            return Workers(replicas, replicas, world.group("model"))
        return Workers(replicas, world.group("rows"), world.group("tensor"))
