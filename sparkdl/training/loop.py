"""The training loop of every worker. Read this file first.

place -> equalise -> attach -> open the rows -> probe -> restore
-> for epoch: sync.start_epoch -> for batch: replica.gradients(batch); sync.update(clock, batch); clock.tick; save
              -> sync.end_epoch -> validate: replica.end_epoch, stopping.after -> save
-> detach, unless the run pauses at ``last_epoch``
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch

from sparkdl.cluster.group.world import World
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.telemetry.emit import span
from sparkdl.training.callbacks.calls import CallbackCalls
from sparkdl.training.cost.memory import explaining_memory
from sparkdl.training.dataloader import BatchLoader
from sparkdl.training.layouts import check_workers, equalise
from sparkdl.training.layouts.arithmetic import tf32
from sparkdl.training.monitor import TrainingMonitor
from sparkdl.training.rng import kept_random_state
from sparkdl.training.spec import TrainingResult, TrainingSpec
from sparkdl.training.trainer_state import TrainerState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training(TrainingSpec):
    """A training run that a cluster calls on every worker, with the settings of ``TrainingSpec``."""

    def __call__(self, world: World, shard: Shard | None) -> TrainingResult:
        """Run ``train`` on one worker, with the random numbers of ``seed``; afterwards the earlier ones go on."""
        if shard is None:
            raise InvalidInput("there is no data to train on.")
        check_workers(self.layout, world.size)
        with _seeded(self.seed, world), tf32(enabled=self.objective.tf32, device=world.device):
            with span("imports"):
                import_module("torch._dynamo")  # which the first optimizer of a process imports
            with explaining_memory(self.objective, self.layout, world, saves=self.checkpointer is not None):
                return train(world, shard, self)


def train(world: World, shard: Shard, training: TrainingSpec) -> TrainingResult:
    """Train one replica together with the other workers of the gang; ``Training`` seeds the random numbers before.

    Raises InvalidInput if the data do not fit, or a saved state is of another run; PeerLost if a worker was lost.
    """
    with span("set up"):
        feed = training.feed(shard)
        replica = equalise(training.layout.place(training.objective, world, feed))
        if hasattr(training.strategy, "check"):  # strategies of users may lack it
            training.strategy.check(training.objective, replica.module, training.layout, world.size)
        sync = training.strategy.attach(replica, replica.workers.replicas)
        if world.size > replica.workers.replicas.size and world.rank == 0:
            replicas = replica.workers.replicas.size
            sizes = world.size // replicas, training.batch_size / replicas
            logger.info("%d replicas on %d workers each, with %.6g rows of a step each", replicas, *sizes)
        rows = BatchLoader(shard, world, training, replica)
        feed.open(rows.spare)
        replica.schedule(rows.plan.steps, training.epochs)
        state = TrainerState(world, training, replica, sync, rows)
        state.report |= rows.probe()
        callbacks, monitor = CallbackCalls(state), TrainingMonitor(state)
    micro_batches = 1 if replica.splits_batches else training.objective.micro_batches
    state.resume()
    with monitor.measured():
        callbacks.start()
        while not (state.finished or state.paused):
            sync.start_epoch()
            for batch in rows.batches(world.clock.epoch, start=state.position):
                for micro_batch, last in batch.split(micro_batches):
                    loss = replica.gradients(micro_batch, last=last)
                    monitor.observe(loss, micro_batch)
                sync.update(world.clock, replica.joined(batch))
                world.clock.tick(batch.total)
                callbacks.end_step()
                state.save()
                monitor.end_step(batch)
            sync.end_epoch(rows.share)
            world.clock.end_epoch()
            with callbacks.around_validation(monitor.validate) as value:
                replica.end_epoch(value)
                state.stopping.after(world.clock.epoch, value)
            callbacks.end_epoch()
            monitor.end_epoch()
            state.save()
        if not state.paused:
            sync.detach()
            callbacks.end()
    return state.result()


@contextmanager
def _seeded(seed: int, world: World) -> Iterator[None]:
    with kept_random_state(world.device):
        rank_seed = generator(seed, world.rank).initial_seed()
        torch.manual_seed(rank_seed)
        random.seed(rank_seed)
        np.random.seed(rank_seed % (1 << 32))
        yield
