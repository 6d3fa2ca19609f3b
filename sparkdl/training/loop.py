"""The gang loop: what every member does from its first batch to its last.

place -> attach -> restore
-> for batch in feed: replica.gradients(batch); sync.update(clock, batch); clock.tick -> detach
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Part
from sparkdl.data.transforms import Augment, Collate
from sparkdl.errors import InvalidInput
from sparkdl.io.serialization import random_state, set_random_state
from sparkdl.telemetry.emit import span
from sparkdl.training.callbacks import check_hooks
from sparkdl.training.course import Course, Keeper
from sparkdl.training.dataloader import Rows
from sparkdl.training.labels import Classes
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.objective import Objective
from sparkdl.training.strategies import Strategy
from sparkdl.training.strategies.allreduce import AllReduce


@dataclass(frozen=True)
class Training:
    """What a run does, the same on every member.

    Attributes:
        objective: what is minimised.
        batch_size: rows of the GLOBAL batch.
        epochs: passes over the data.
        seed: seed of the weights, of the permutations and of the members' random numbers.
        strategy: how replicas agree.
        layout: how a replica lies on members.
        accumulate: into how many pieces a member cuts its rows of a step, to save memory; the step stays the same.
        shuffle: False takes the rows in row-id order.
        patience: epochs without a smaller loss after which training ends with the best epoch's weights; None for all.
        hooks: the user's own objects, called on the way; see ``sparkdl.training.callbacks``.
        classes: what the labels are checked for; None where they are no class indices.
        collate: ``collate(inputs, target)``, of every batch; None for none.
        augment: ``augment(inputs, target, generator)``, of training batches, before ``collate``; None for none.
        keeper: what keeps the members' states, and gives them back in a later attempt; None for nothing.
        measured: whether members tell how far they are, and what their steps spend their time on.
    """

    objective: Objective
    batch_size: int
    epochs: int = 1
    seed: int = 0
    strategy: Strategy = field(default_factory=AllReduce)
    layout: Layout = field(default_factory=Replicated)
    accumulate: int = 1
    shuffle: bool = True
    patience: int | None = None
    hooks: Sequence[Any] = ()
    classes: Classes | None = None
    collate: Collate | None = None
    augment: Augment | None = None
    keeper: Keeper | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected at least 1.")
        if self.patience is not None and self.patience < 1:
            raise InvalidInput(f"patience is {self.patience}; expected at least 1 epoch, or None.")
        check_hooks(self.hooks)

    def title(self) -> str:
        """What an attempt that begins now has to do, as the Spark UI shows it."""
        done = 0 if self.keeper is None else self.keeper.epoch()
        return f"epochs {min(done + 1, self.epochs)} to {self.epochs}"

    def __call__(self, world: World, part: Part | None) -> Trained:
        """``train`` as the work of a gang."""
        if part is None:
            raise InvalidInput("there is no data to train on.")
        return train(world, part, self)


@dataclass(frozen=True)
class Trained:
    """What a member brings back.

    Attributes:
        weights: safetensors bytes of the module, from rank 0; empty from the others.
        history: a row per epoch; the same on every member.
        report: seconds, rows and bytes of this member.
    """

    weights: bytes
    history: list[dict[str, Any]]
    report: dict[str, Any]


def train(world: World, part: Part, training: Training) -> Trained:
    """Train a replica together with the other members of the gang.

    Args:
        world: the gang.
        part: this member's rows.
        training: what to do.

    Raises:
        InvalidInput: the data has no rows to train on, or does not fit the model; a state is of another training.
        PeerLost: another member has gone.
    """
    group = world.group()
    with _seeded(training.seed, world):
        with span("set up"):
            replica = training.layout.place(training.objective, world)
            sync = training.strategy.attach(replica, group)
            rows = Rows(part, group, training, world.device)
            course = Course(world, training, replica, sync, rows)
        with course.restored(), course.measured():
            course.start()
            while not course.over:
                for batch in rows.batches(world.clock.epoch, start=course.position):
                    for piece, last in _pieces(batch, training.accumulate):
                        loss = replica.gradients(piece, last=last)
                        course.observe(loss, piece)
                    sync.update(world.clock, batch)
                    world.clock.tick(batch.total)
                    course.end_step(batch)
                world.clock.end_epoch()
                course.end_epoch()
            sync.detach()
            course.end()
    report = rows.report | course.report | {"bytes_per_step": sync.bytes_per_step, "host": world.host}
    return Trained(course.weights(), course.history, report)


def _pieces(batch: Batch, accumulate: int) -> Iterator[tuple[Batch, bool]]:
    for index, piece in enumerate(batch.split(accumulate)):
        yield piece, index == accumulate - 1


@contextmanager
def _seeded(seed: int, world: World) -> Iterator[None]:
    """Random numbers from (seed, rank) alone; the caller's are put back afterwards."""
    before = random_state(world.device)
    member = generator(seed, world.rank).initial_seed()
    torch.manual_seed(member)
    random.seed(member)
    np.random.seed(member % (1 << 32))
    try:
        yield
    finally:
        set_random_state(before, world.device)
