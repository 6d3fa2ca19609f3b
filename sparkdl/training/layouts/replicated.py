"""Data parallelism: every worker holds the whole model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sparkdl.cluster.group.world import World
from sparkdl.io.fields import CheckedFields
from sparkdl.training.layouts import Layout, Workers, arithmetic
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.slice_checks import check_tables
from sparkdl.training.layouts.table import held_rows, tables_of
from sparkdl.training.layouts.table_rows import TableRows
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Replicated(CheckedFields, Layout):
    """Every worker holds the whole model; there are as many replicas as workers.

    Attributes:
        sync_batch_norm: whether batch normalisation on GPUs takes the mean and variance of the global batch, not of
            each worker's rows.
    """

    sync_batch_norm: bool = False

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        """Raise InvalidInput if a gang cannot train the model's tables."""
        check_tables(objective, module)

    def place(self, objective: Objective, world: World, feed: Feed) -> ModuleReplica:
        """Build the model on this worker's device, and its tables over all workers."""
        with held_rows(world.rank, world.size):
            module = objective.build(world.device, warn=world.rank == 0)
        self.check(objective, module, world.size)
        tables = TableRows(module, world.group(), feed.seed, world.device) if tables_of(module) else None
        if self.sync_batch_norm:
            module = arithmetic.sync_batch_norm(module, world)
        if objective.compile is not None:
            arithmetic.compile_module(module, objective.compile)
        replica = ModuleReplica(objective, module, Workers.of(world), feed, tables=tables)
        replica.needs_rows = arithmetic.exchanges_statistics(module, world)
        return replica
