"""Local training on one shard, for averaging algorithms and inexact ADMM, by the steps of ``Replicated``'s replica."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sparkdl.cluster.group.world import Group
from sparkdl.data.batching import Batcher, DeviceCache
from sparkdl.data.sampler import Plan, generator
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.rounds.parameters import seeded
from sparkdl.telemetry.step_timer import end_step, enter_phase
from sparkdl.training.layouts import Workers
from sparkdl.training.layouts.arithmetic import tf32
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.objective.objective import Objective
from sparkdl.training.strategies.buckets import views

Pull = Callable[[Sequence[nn.Parameter]], None]
"""Adds a term to the gradients, after the backward pass and before clipping."""


@dataclass(frozen=True)
class LocalTraining:
    """Settings of local training. Every round has a new optimizer, and steps the scheduler once per earlier round."""

    epochs: int
    batch_size: int  # rows of a step of this shard
    round: int
    key: tuple[int, ...]  # row order and random numbers depend on it and ``round`` alone
    pull: Pull | None = None

    def train(self, objective: Objective, module: nn.Module, shard: Shard) -> tuple[Tensor, Tensor]:
        """Train the module in place on a single shard (``as_only_shard``); raises InvalidInput if a loss is not finite.

        Returns the sum of the last epoch's losses, each before its step, and their denominator; float64 CPU scalars.
        """
        seed, device = generator(*self.key, self.round).initial_seed(), objective.device
        replica = ModuleReplica(objective, module, Workers(Group(), Group()))
        self._schedule(objective, replica.optimizer)
        total = denominator = torch.zeros((), dtype=torch.float64)
        batcher = self._batcher(shard, device, seed)
        with seeded(seed, device), tf32(enabled=objective.tf32, device=device):
            for epoch in range(self.epochs):
                total, denominator = (torch.zeros((), dtype=torch.float64, device=one) for one in (device, "cpu"))
                enter_phase("feed")
                for batch in batcher.batches(epoch):
                    if not batch.weight:
                        continue
                    for micro_batch, last in batch.split(objective.micro_batches):
                        total += replica.gradients(micro_batch, last=last).double() * micro_batch.weight
                    denominator += batch.weight
                    replica.apply(adjust=self.pull)
                    end_step(rows=batch.rows)
                    enter_phase("feed")
        if not bool(torch.isfinite(total)):
            raise InvalidInput("the loss is not finite; lower the learning rate, or set maxGradNorm.")
        return total.cpu(), denominator

    def _batcher(self, shard: Shard, device: torch.device, seed: int) -> Batcher:
        stored = len(next(iter(shard.tensors.values())))
        again = self.epochs > 1 and 2 * shard.rows >= stored and not shard.transforms
        cache = DeviceCache.of(shard, device) if again else None
        return Batcher(shard, Plan((shard.rows,), self.batch_size, seed), device, cache=cache)

    def _schedule(self, objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        if objective.scheduler is None:
            return
        scheduler = objective.open_scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise InvalidInput("scheduler is a ReduceLROnPlateau, and rounds pass no loss to it; expected another.")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            for _ in range(self.round):
                scheduler.step()


def toward(v: Tensor, strength: float) -> Pull:
    """A ``Pull`` that adds the gradient of ``strength/2 ||x - v||^2``.

    ``v`` is flat, ``[n]``, on the parameters' device.
    """

    def pull(parameters: Sequence[nn.Parameter]) -> None:
        for parameter, piece in zip(parameters, views(v, [one.shape for one in parameters]), strict=True):
            drawn = strength * (parameter.detach() - piece)
            parameter.grad = drawn if parameter.grad is None else parameter.grad + drawn

    return pull
