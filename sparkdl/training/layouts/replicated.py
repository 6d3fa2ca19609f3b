"""Data parallelism: every worker holds the whole model."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.cluster.group.world import World
from sparkdl.io.fields import CheckedFields
from sparkdl.training.layouts import Layout, Workers, arithmetic
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Replicated(CheckedFields, Layout):
    """Every worker holds the whole model; there are as many replicas as workers.

    Attributes:
        sync_batch_norm: whether batch normalisation on GPUs takes the mean and variance of the global batch, not of
            each worker's rows.
    """

    sync_batch_norm: bool = False

    def place(self, objective: Objective, world: World, feed: Feed) -> ModuleReplica:
        """Build the model on this worker's device."""
        module = objective.build(world.device, warn=world.rank == 0)
        if self.sync_batch_norm:
            module = arithmetic.sync_batch_norm(module, world)
        if objective.compile is not None:
            arithmetic.compile_module(module, objective.compile)
        replica = ModuleReplica(objective, module, Workers.of(world))
        replica.needs_rows = arithmetic.exchanges_statistics(module, world)
        return replica
