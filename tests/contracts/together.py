"""A layout of tests: two workers hold a whole replica each, and run on the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.cluster.group.mesh import grid, open_axes
from sparkdl.cluster.group.world import World
from sparkdl.io.fields import CheckedFields
from sparkdl.training.layouts import Layout, Workers
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.objective.objective import Objective


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
