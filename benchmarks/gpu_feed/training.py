"""Epochs of the training loop and of a bare loop over data on the card, in one process of a gang of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pairs import Side, interleave
from sparkdl import Objective
from sparkdl.cluster.group.world import World
from sparkdl.data.batching import DeviceCache
from sparkdl.data.shard import Shard
from sparkdl.training.layouts.arithmetic import autocast
from sparkdl.training.loop import Training

sgd = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
_COPIES = 64  # of one batch, for the bound of the copy


@dataclass(frozen=True)
class Epochs:
    """Rows per second of both sides in every round.

    Attributes:
        model: factory of the module, the same on both sides.
        loss: the same on both sides.
        batch: rows of a step.
        rounds: that count; one more comes first.
        copied: whether batches are copied from the host, against the copy alone; else the card holds the rows, against
            a bare loop.
        precision: of both sides.
    """

    model: Callable[[], nn.Module]
    loss: nn.Module
    batch: int
    rounds: int
    copied: bool = False
    precision: str = "bf16"

    def __call__(self, world: World, shard: Shard | None) -> Any:
        """Measure on this worker's device."""
        assert shard is not None
        ours = Side("sparkdl", partial(self._trained, world, shard))
        other = Side("copy", partial(self._copied, world, shard)) if self.copied else self._bare(world, shard)
        return interleave(ours, other, rounds=self.rounds)

    def _trained(self, world: World, shard: Shard) -> float:
        """The second epoch of the training loop."""
        mode = "never" if self.copied or world.device.type == "cpu" else "always"
        objective = Objective(self.model, self.loss, sgd, precision=self.precision)
        training = Training(objective, self.batch, epochs=2, measured=False, cache_on_device=mode)
        return float(training(World(device=world.device), shard).history[-1]["rows_per_second"])

    def _bare(self, world: World, shard: Shard) -> Side:
        device = world.device
        columns = [tensor.to(device) for tensor in DeviceCache.columns(shard).values()]
        torch.manual_seed(0)
        module, loss = self.model().to(device), self.loss.to(device)
        optimizer = sgd(module.parameters())

        def epoch() -> float:
            start = time.perf_counter()
            order = torch.randperm(shard.rows).to(device)
            for positions in order.split(self.batch):
                inputs, target = (column.index_select(0, positions) for column in columns)
                with autocast(self.precision, device):
                    value = loss(module(inputs), target)
                value.backward()
                optimizer.step()
                optimizer.zero_grad()
            _wait(device)
            return shard.rows / (time.perf_counter() - start)

        return Side("bare loop", epoch)

    def _copied(self, world: World, shard: Shard) -> float:
        """Copies of one batch from pinned memory, one after the other."""
        device, columns = world.device, [column[: self.batch] for column in DeviceCache.columns(shard).values()]
        pinned: list[Tensor] = [column.pin_memory() if device.type == "cuda" else column for column in columns]
        start = time.perf_counter()
        for _ in range(_COPIES):
            for column in pinned:
                column.to(device, non_blocking=True, copy=True)
        _wait(device)
        return _COPIES * len(columns[0]) / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
