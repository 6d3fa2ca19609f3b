"""The gang loop: what every member does from its first batch to its last.

place -> attach -> for batch in feed: replica.gradients(batch); sync.update(clock, batch); clock.tick -> detach
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.errors import InvalidInput
from sparkdl.evaluate import Meter, evaluate, open_metrics
from sparkdl.events import record
from sparkdl.feed.part import Part
from sparkdl.feed.sampling import Plan, generator
from sparkdl.layout import Layout, Replica
from sparkdl.layout.replicated import Replicated
from sparkdl.objective import Objective
from sparkdl.strategies import Strategy
from sparkdl.strategies.allreduce import AllReduce
from sparkdl.tensors import Batch
from sparkdl.weights import pack
from sparkdl.world import Group, World

_PROGRESS = 0.25  # seconds between progress events


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
    """

    objective: Objective
    batch_size: int
    epochs: int = 1
    seed: int = 0
    strategy: Strategy = field(default_factory=AllReduce)
    layout: Layout = field(default_factory=Replicated)
    accumulate: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected at least 1.")

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
        InvalidInput: the data has no rows to train on, or does not fit the model.
        PeerLost: another member has gone.
    """
    group = world.group()
    with _seeded(training.seed, world):
        replica = training.layout.place(training.objective, world)
        sync = training.strategy.attach(replica, group)
        run = _Run(world, group, part, training, replica)
        for epoch in range(training.epochs):
            for batch in run.feed(epoch):
                for piece, last in _pieces(batch, training.accumulate):
                    loss = replica.gradients(piece, last=last)
                    run.observe(loss, piece)
                sync.update(world.clock, batch)
                world.clock.tick(batch.total)
                run.progress()
            world.clock.end_epoch()
            run.end_epoch()
        sync.detach()
    report = run.report | {"bytes_per_step": sync.bytes_per_step}
    return Trained(pack(replica.module) if world.rank == 0 else b"", run.history, report)


class _Run:
    """What a member keeps beside the replica: the plan, the meters, the history."""

    def __init__(self, world: World, group: Group, part: Part, training: Training, replica: Replica) -> None:
        self.world, self.group, self.replica, self.training = world, group, replica, training
        self.history: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {
            "rows": part.rows,
            "inputs": None,
            "output": None,
            "feed_wait_seconds": 0.0,
            "train_seconds": 0.0,
        }
        self.criterion = training.objective.criterion(world.device)
        part, self.validation = _split(part.weighed(self.criterion.masses), group)
        self.part = self._weighed_together(part)
        self.plan = Plan(part.parts, training.batch_size, training.seed, training.shuffle)
        if not self.plan.total:
            raise InvalidInput("there are no rows to train on: every row is a validation row.")
        if self.validation is not None and not sum(self.validation.parts):
            raise InvalidInput(
                "there is a validation column, but no row is a validation row; expected some, or no such column."
            )
        metrics = open_metrics(training.objective.metrics, world.device)
        self.metrics = metrics if self.validation is None else {}
        self.validation_metrics = {} if self.validation is None else metrics
        self.meter = Meter(world.device, self.metrics)
        self._started = self._shown = time.monotonic()

    def feed(self, epoch: int) -> Iterator[Batch]:
        """The epoch's batches; counts the time that the training waits for them."""
        totals = None
        if self.part.masses is not None:
            weights = self.part.step_weights(self.plan, epoch)
            self.group.sum_(weights)
            totals = weights.tolist()
        self._started = self._shown = time.monotonic()
        batches = self.part.batches(self.plan, epoch=epoch, totals=totals, device=self.world.device)
        while True:
            before = time.perf_counter()
            batch = next(batches, None)
            self.report["feed_wait_seconds"] += time.perf_counter() - before
            if batch is None:
                return
            yield batch

    def observe(self, loss: Tensor, batch: Batch) -> None:
        """Take down a batch's loss and, without validation rows, its metrics."""
        self.meter.add(loss, self.replica.output, batch)
        if self.report["inputs"] is None:
            self.report["inputs"] = [
                (list(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")) for tensor in batch.inputs
            ]
        if self.report["output"] is None and isinstance(self.replica.output, Tensor):
            self.report["output"] = list(self.replica.output.shape[1:])

    def progress(self) -> None:
        """Tell the driver how far the gang is, now and then and from rank 0 alone."""
        now, clock = time.monotonic(), self.world.clock
        if self.world.rank or (clock.step > 1 and now - self._shown < _PROGRESS):
            return
        self._shown = now
        done = clock.step - clock.epoch * self.plan.steps
        record(
            "progress",
            clock=clock,
            epochs=self.training.epochs,
            steps=self.plan.steps,
            loss=self.meter.local_mean(),
            rows_per_second=done * self.plan.batch_size / max(now - self._started, 1e-9),
        )

    def end_epoch(self) -> None:
        """Close the epoch's row of the history, with validation where there are rows for it."""
        seconds = time.monotonic() - self._started
        self.report["train_seconds"] += seconds
        average_buffers(self.replica.module, self.group, self.part.rows / self.plan.total)
        clock = self.world.clock
        row: dict[str, Any] = {"epoch": clock.epoch, "step": clock.step, "samples": clock.samples}
        row |= self.meter.close(self.group)
        if self.validation is not None:
            found = evaluate(
                self.replica.module,
                self.criterion,
                self.validation,
                self.group,
                metrics=self.validation_metrics,
                batch_size=self.training.batch_size,
                device=self.world.device,
            )
            row |= {f"valid_{name}": value for name, value in found.items()}
        row |= {"seconds": seconds, "rows_per_second": self.plan.total / max(seconds, 1e-9)}
        self.history.append(row)
        if self.world.rank == 0:
            record("epoch", clock=clock, **row)

    def _weighed_together(self, part: Part) -> Part:
        """Members with a part that weighs 1 a row count weights as well where another member has to."""
        if not any(self.group.gather(part.masses is not None)):
            return part
        return part if part.masses is not None else part.with_unit_masses()


def _split(part: Part, group: Group) -> tuple[Part, Part | None]:
    """Training and validation rows."""
    if part.columns.validation is None:
        return part, None
    training, validation = part.split()
    rows = group.gather((len(training), len(validation)))
    parts = tuple(zip(*rows, strict=True))
    return part.subset(training, parts[0]), part.subset(validation, parts[1])


def _pieces(batch: Batch, accumulate: int) -> Iterator[tuple[Batch, bool]]:
    for index, piece in enumerate(batch.split(accumulate)):
        yield piece, index == accumulate - 1


def average_buffers(module: nn.Module, group: Group, share: float) -> None:
    """Average floating-point buffers, which batch normalisation keeps per member.

    Args:
        module: the replica's module.
        group: the members.
        share: this member's part of all training rows. A member without rows has seen nothing, and its buffers,
            still as they were at the start, count for nothing.
    """
    if group.size == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point():
            # In double precision, so that a buffer that is the same everywhere stays what it is.
            total = buffer.double() * share if share else torch.zeros_like(buffer, dtype=torch.float64)
            group.sum_(total)
            buffer.copy_(total)


@contextmanager
def _seeded(seed: int, world: World) -> Iterator[None]:
    """Torch's random numbers from (seed, rank) alone; the caller's are put back afterwards."""
    devices = [world.device] if world.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(generator(seed, world.rank).initial_seed())
        yield
