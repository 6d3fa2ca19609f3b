"""Steps of pipelines, against the slower stage alone, and with automatic cuts against equal numbers of layers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from benchmarks.mlp import adam
from sparkdl import AllReduce, Objective, Pipelined
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.training.layouts import equalise
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.stages.cuts import layer_seconds

EVEN = (512,) * 13  # twelve equal layers
UNEVEN = (*(256,) * 9, *(2048,) * 4)  # eight narrow layers and four wide ones
WARMUPS = 1  # blocks


def layers(widths: tuple[int, ...]) -> nn.Sequential:
    """A linear layer with ReLU for each two widths."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(wide, narrow), nn.ReLU()) for wide, narrow in pairwise(widths)))


@dataclass(frozen=True)
class PipelineSteps:
    """A worker's blocks of steps of a pipeline of two stages.

    Attributes:
        widths: of the model's layers.
        first: the first layer of the second stage; None for automatic cuts.
        micro_batches: of a step.
        rows: of a step, all workers' together.
        steps: of a block.
        blocks: that count.
    """

    widths: tuple[int, ...]
    first: int | None
    micro_batches: int
    rows: int
    steps: int
    blocks: int

    def __call__(self, world: World, shard: Shard | None) -> tuple[list[float], float]:
        """Seconds per step of each block, the slower worker's, and of the slower stage alone on a micro-batch."""
        torch.manual_seed(world.rank)
        split = None if self.first is None else (str(self.first),)
        objective = Objective(partial(layers, self.widths), nn.MSELoss(), adam, micro_batches=self.micro_batches)
        inputs, target = torch.rand(self.rows, self.widths[0]), torch.rand(self.rows, self.widths[-1])
        batch = Batch((inputs,), target, None, None, self.rows, self.rows, 1.0, total=self.rows)
        plan = Plan((self.rows // world.size,) * world.size, self.rows)
        feed = Feed(plan, self.micro_batches, sample=lambda: batch.cut(0, 32, 1.0, 32))
        replica = equalise(Pipelined(world.size, split=split).place(objective, world, feed))
        sync, blocks = AllReduce().attach(replica, replica.workers.replicas), []
        for _ in range(WARMUPS + self.blocks):
            world.group().sum_(torch.zeros(1))  # both workers begin together
            start = time.perf_counter()
            for _ in range(self.steps):
                replica.gradients(batch)
                sync.update(world.clock, batch)
            blocks.append(max(world.group().gather(time.perf_counter() - start)) / self.steps)
        return blocks[WARMUPS:], self._alone(world)

    def _alone(self, world: World) -> float:
        """Seconds of the slower stage, forward and backward on a micro-batch, while the other worker waits."""
        if self.first is None:
            return 0.0
        seconds, parts = [], [*layers(self.widths)]
        stages = [nn.Sequential(*parts[: self.first]), nn.Sequential(*parts[self.first :])]
        for rank in range(world.size):
            world.group().sum_(torch.zeros(1))
            if world.rank == rank:
                rows = torch.rand(self.rows // self.micro_batches, self.widths[0 if rank == 0 else self.first])
                seconds.append(min(layer_seconds([stages[rank]], [rows])[0] for _ in range(3)))
        return max(one for part in world.group().gather(seconds) for one in part)
