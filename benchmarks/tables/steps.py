"""Steps of a worker with tables, with a sparse embedding, and of a dense all-reduce alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sparkdl import AllReduce, Objective, Table
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.training.layouts import equalise
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated

WIDTH, COLUMNS = 16, 26
adagrad = partial(torch.optim.Adagrad, lr=0.05)  # takes dense gradients and sparse ones


class Model(nn.Module):
    """Vectors of the ids of 26 columns, of one table, of a table for each column, or of a sparse embedding."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind, self.head = kind, nn.Linear(WIDTH, 1)
        if kind == "tables":
            self.rows = nn.ModuleList(Table(size // COLUMNS, WIDTH, optimizer=adagrad) for _ in range(COLUMNS))
        else:
            self.rows = (
                Table(size, WIDTH, optimizer=adagrad) if kind == "table" else nn.Embedding(size, WIDTH, sparse=True)
            )

    def forward(self, ids: Tensor) -> Tensor:
        if isinstance(self.rows, nn.ModuleList):
            columns = [rows(column) for rows, column in zip(self.rows, ids.unbind(1), strict=True)]
            output: Tensor = self.head(torch.stack(columns, 1).sum(1))
        else:
            output = self.head(self.rows(ids).sum(1))
        return output


@dataclass(frozen=True)
class TableSteps:
    """Seconds of a step of one kind, the slower worker's, in each block that counts.

    Attributes:
        kind: of ``Model``; or ``"dense"``, the all-reduce of the whole table's gradient alone.
        size: rows of all tables together.
        rows: of each worker's batch, with 26 ids each.
        steps: of a block.
        blocks: that count.
    """

    kind: str
    size: int
    rows: int
    steps: int
    blocks: int

    def __call__(self, world: World, shard: Shard | None) -> list[float]:
        """The seconds."""
        step = self._dense(world) if self.kind == "dense" else self._training(world)
        seconds = []
        for _ in range(1 + self.blocks):
            world.group().sum_(torch.zeros(1))  # both workers begin together
            start = time.perf_counter()
            for _ in range(self.steps):
                step()
            seconds.append(max(world.group().gather(time.perf_counter() - start)) / self.steps)
        return seconds[1:]

    def _dense(self, world: World) -> Callable[[], None]:
        gradient = torch.zeros(self.size * WIDTH)
        return lambda: world.group().sum_(gradient)

    def _training(self, world: World) -> Callable[[], None]:
        objective = Objective(lambda: Model(self.kind, self.size), nn.MSELoss(), adagrad)
        plan = Plan((self.rows,) * world.size, self.rows * world.size)
        replica = equalise(Replicated().place(objective, world, Feed(plan)))
        sync = AllReduce().attach(replica, replica.workers.replicas)
        random = torch.Generator().manual_seed(world.rank)
        size = self.size // COLUMNS if self.kind == "tables" else self.size
        batches = [
            Batch((ids,), torch.rand(self.rows, 1), None, None, self.rows, self.rows, 1 / world.size, total=plan.total)
            # Of a few ids there are many: the cube of a uniform number.
            for ids in (torch.rand(self.steps, self.rows, COLUMNS, generator=random).pow(3) * size).long()
        ]
        turn = iter(batches * (1 + self.blocks))

        def step() -> None:
            batch = next(turn)
            replica.gradients(batch)
            sync.update(world.clock, replica.joined(batch))
            world.clock.tick(batch.total)

        return step
