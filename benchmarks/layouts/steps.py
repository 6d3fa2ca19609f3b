"""Steps of a sharded model against steps of AllReduce, and of torch's own loop with ``fully_shard``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.mlp import adam, mlp
from sparkdl import AllReduce, Objective
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.training.layouts import Layout, equalise
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded, free_to_system

WARMUPS = 1  # blocks
SIDES = ("sharded", "kept", "torch", "allreduce")


@dataclass(frozen=True)
class StateBytes:
    """Bytes of a worker's weights, gradients and optimizer state after a step on random rows.

    Attributes:
        layout: how the model is placed.
        width: of the rows, and of the encoder's.
    """

    layout: Layout
    width: int

    def __call__(self, world: World, shard: Shard | None) -> int:
        rows, length = 4, 8
        objective = Objective(partial(encoder, self.width), nn.MSELoss(), adam)
        plan = Plan((rows,) * world.size, rows * world.size)
        replica = equalise(self.layout.place(objective, world, Feed(plan)))
        inputs = torch.rand(rows, length, self.width)
        replica.gradients(Batch((inputs,), inputs, None, None, rows, rows, 1.0, total=rows))
        gradients = sum(one.grad.nbytes for one in replica.parameters if one.grad is not None)
        replica.apply()
        states = [value for state in replica.optimizer.state.values() for value in state.values()]
        return gradients + sum(one.nbytes for one in [*replica.parameters, *states])


def encoder(width: int) -> nn.Module:
    """Two layers of a transformer, whose feed-forward parts have 90 % of the parameters."""
    layers = [nn.TransformerEncoderLayer(width, 4, 18 * width, dropout=0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class SideSteps:
    """Blocks of steps of one side on one worker.

    Each side runs in new processes, because ``Sharded`` changes the settings of malloc for the whole process.

    Attributes:
        side: one of ``SIDES``.
        widths: of the model's layers.
        rows: of each worker's batch.
        steps: of a block.
        blocks: that count.
    """

    side: str
    widths: tuple[int, ...]
    rows: int
    steps: int
    blocks: int

    def __call__(self, world: World, shard: Shard | None) -> tuple[list[float], int]:
        """Seconds per step of each block, the slower worker's, and the bytes that the layout counts per step."""
        torch.manual_seed(world.rank)
        inputs, target = torch.rand(self.rows, self.widths[0]), torch.rand(self.rows, 1)
        count = [0]
        if self.side == "torch":
            step = self._torch(inputs, target)
        else:
            layout: Layout = Replicated() if self.side == "allreduce" else Sharded(keep=self.side == "kept")
            step = self._sparkdl(world, layout, inputs, target, count)
        blocks = []
        for _ in range(WARMUPS + self.blocks):
            world.group().sum_(torch.zeros(1))  # both workers begin together
            start = time.perf_counter()
            for _ in range(self.steps):
                step()
            blocks.append(max(world.group().gather(time.perf_counter() - start)) / self.steps)
        return blocks[WARMUPS:], count[0]

    def _sparkdl(
        self, world: World, layout: Layout, inputs: Tensor, target: Tensor, count: list[int]
    ) -> Callable[[], None]:
        objective = Objective(partial(mlp, *self.widths), nn.MSELoss(), adam)
        plan = Plan((self.rows,) * world.size, self.rows * world.size)
        replica = equalise(layout.place(objective, world, Feed(plan)))
        sync = AllReduce().attach(replica, replica.workers.replicas)
        total = self.rows * world.size
        batch = Batch((inputs,), target, None, None, self.rows, self.rows, 1 / world.size, total=total)

        def step() -> None:
            replica.gradients(batch)
            sync.update(world.clock, replica.joined(batch))
            world.clock.tick(batch.total)
            count[0] = replica.bytes_per_step

        return step

    def _torch(self, inputs: Tensor, target: Tensor) -> Callable[[], None]:
        free_to_system()
        mesh, model = init_device_mesh("cpu", (torch.distributed.get_world_size(),)), mlp(*self.widths)
        for layer in [*model, model]:
            if isinstance(layer, (nn.Linear, nn.Sequential)):
                fully_shard(layer, mesh=mesh).set_force_sum_reduction_for_comms(True)
        optimizer, criterion = torch.optim.Adam(model.parameters(), lr=1e-3), nn.MSELoss()

        def step() -> None:
            criterion(model(inputs), target).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step
