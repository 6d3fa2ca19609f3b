"""Users' own loops as the work of a gang: DDP and Lightning Fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from sparkdl.cluster.group.world import World
from sparkdl.data.batching import Batcher
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.training.loop import Training
from tests.contracts.work import Net, Seeded, arrays


@dataclass(frozen=True)
class Ddp:
    """The training with DDP in place of sparkdl's loop: its model, optimizer and plan, the mean squared error.

    Attributes:
        training: what to do.
        weighted: whether a step's loss is the mean weighted by rows.
        stumbles: the rank that raises before its third backward pass.
    """

    training: Training
    weighted: bool = False
    stumbles: int | None = None

    def __call__(self, world: World, shard: Shard | None) -> dict[str, Any]:
        assert shard is not None
        module = self.training.objective.build()
        model, done = DistributedDataParallel(module), 0
        optimizer = self.training.objective.optimizer(model.parameters())
        plan = Plan(shard.shard_rows, self.training.batch_size, self.training.seed)
        for epoch in range(self.training.epochs):
            for batch in Batcher(shard, plan).batches(epoch):
                if done == 2 and world.rank == self.stumbles:
                    raise ArithmeticError("stumbled over a row")
                losses = mse_loss(model(*batch.inputs), batch.target, reduction="none")
                total = torch.tensor(float(batch.total), dtype=torch.float64)
                if self.weighted:
                    losses, total = losses * batch.weights, batch.weights.sum().double()
                    dist.all_reduce(total)
                optimizer.zero_grad()
                (losses.sum() * world.size / total).backward()
                optimizer.step()
                done += 1
        return {"steps": done, "parameters": arrays(dict(module.named_parameters()))}


@dataclass(frozen=True)
class Fabric:
    """Lightning Fabric on a running gang; it starts no process."""

    batch_size: int = 8

    def __call__(self, world: World, shard: Shard | None) -> dict[str, Any]:
        from lightning_fabric import Fabric as Lightning
        from lightning_fabric.plugins.environments import TorchElasticEnvironment

        assert shard is not None
        environment = TorchElasticEnvironment()  # reads the variables of a gang
        fabric = Lightning(accelerator="cpu", devices=world.size, strategy="ddp", plugins=[environment])
        fabric.launch()
        module: nn.Module = Seeded(Net)()
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        for batch in Batcher(shard, Plan(shard.shard_rows, self.batch_size)).batches(0):
            optimizer.zero_grad()
            losses = mse_loss(model(*batch.inputs), batch.target, reduction="sum")
            fabric.backward(losses * world.size / batch.total)
            optimizer.step()
        total: Any = fabric.all_reduce(torch.tensor(float(shard.rows)), reduce_op="sum")
        return {
            "rank": fabric.global_rank,
            "size": fabric.world_size,
            "rows": int(total),
            "parameters": arrays(dict(module.named_parameters())),
        }
