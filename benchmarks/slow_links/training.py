"""The training whose steps the benchmark times: digits of MNIST by a perceptron with 4.8 million parameters."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.federated.digits import mnist
from benchmarks.mlp import mlp
from benchmarks.slow_links.network import sent_by_this_host
from sparkdl import Objective
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.training.layouts import equalise
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.strategies import Strategy

MODEL = partial(mlp, 784, 2048, 1536, 10)
PARAMETERS = 4_770_314
VALIDATED = 2_000  # rows

sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Run:
    """What one worker measured.

    Attributes:
        host: the name of its host.
        ends: seconds from the start to the end of each step, without the copies of weights.
        gradients: median seconds of the forward and backward pass.
        counted: bytes that the worker sends per step, as the strategy counts them.
        sent: bytes that its host sent during the steps, headers included.
        idle: bytes per second that its host sent without steps.
        accuracies: step -> share of the validation rows that the mean of the replicas labels correctly; only of rank 0.
    """

    host: str
    ends: list[float]
    gradients: float
    counted: int
    sent: int
    idle: float
    accuracies: dict[int, float]


@dataclass(frozen=True)
class Steps:
    """A worker's steps, the same as in the training loop.

    Attributes:
        strategy: how the replicas synchronise.
        folder: a folder that all hosts share, for the weights of replicas that differ.
        steps: steps that count, at least.
        warmups: steps before them.
        every: steps between two copies of the weights, which are validated after the last step; 0 for none.
        rows: rows of each worker's batch.
        pause: seconds without steps, in which the traffic of an idle gang is measured.
        least: bytes that the worker sends, at least, by the strategy's count; further steps follow until then.
        period: the number of steps is a multiple of it.
        seed: of the weights and the batches.
    """

    strategy: Strategy
    folder: str
    steps: int
    warmups: int = 0
    every: int = 0
    rows: int = 64
    pause: float = 0.0
    least: int = 0
    period: int = 1
    seed: int = 0

    def __call__(self, world: World, shard: Shard | None) -> dict[str, Any]:
        """Train; the measurements are a ``Run`` as plain data."""
        torch.manual_seed(self.seed)
        images, validation = mnist(VALIDATED / 10_000, self.seed)
        inputs, target = torch.from_numpy(images.pixels).float() / 255, torch.from_numpy(images.digits)
        feed = Feed(Plan((self.rows,) * world.size, self.rows * world.size))
        replica = equalise(Replicated().place(Objective(MODEL, nn.CrossEntropyLoss(), sgd), world, feed))
        sync = self.strategy.attach(replica, world.group())
        steps = max(self.steps, -(-self.least // sync.bytes_per_step))
        steps += -steps % self.period
        idle, copies, ends, passes = 0.0, {}, [], []
        spent, started, sent = 0.0, 0.0, 0
        for step in range(1 - self.warmups, steps + 1):
            if step == 1:
                idle = self._idle(world)
                self._meet(world)
                sent, started = sent_by_this_host(), time.perf_counter()
            batch = self._batch(world, inputs, target, self.warmups + step - 1)
            begun = time.perf_counter()
            replica.gradients(batch)
            passes.append(time.perf_counter() - begun)
            sync.update(world.clock, batch)
            world.clock.tick(batch.total)
            ends.append(time.perf_counter() - started - spent)
            if self.every and step > 0 and step % self.every == 0:
                copies[step] = parameters_to_vector(replica.parameters).detach().clone()
                spent = time.perf_counter() - started - ends[-1]
        self._meet(world)
        sent = sent_by_this_host() - sent
        copies = self._averaged(world, copies, replicated=sync.replicated)
        accuracies = {step: _accuracy(weights, validation) for step, weights in copies.items()}
        passed = float(np.median(passes[self.warmups :]))
        return asdict(Run(world.host, ends[self.warmups :], passed, sync.bytes_per_step, sent, idle, accuracies))

    def _batch(self, world: World, inputs: Tensor, target: Tensor, step: int) -> Batch:
        total = self.rows * world.size
        epoch, place = divmod(step, len(inputs) // total)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        first = place * total + world.rank * self.rows
        rows = order[first : first + self.rows]
        whole = {"total": total, "step_weight": float(total)}
        return Batch((inputs[rows],), target[rows], None, None, self.rows, self.rows, 1 / world.size, **whole)

    def _idle(self, world: World) -> float:
        if not self.pause:
            return 0.0
        self._meet(world)
        sent = sent_by_this_host()
        time.sleep(self.pause)
        return (sent_by_this_host() - sent) / self.pause

    def _meet(self, world: World) -> None:
        world.group().sum_(torch.zeros(1))

    def _averaged(self, world: World, copies: dict[int, Tensor], *, replicated: bool) -> dict[int, Tensor]:
        """The mean of the replicas' copies, on rank 0; they travel by disk, not through the cables."""
        if not replicated:
            for step, weights in copies.items():
                np.save(Path(self.folder, f"{step}-{world.rank}.npy"), weights.numpy())
            world.all_gather_json("copied", {})
        if world.rank > 0:
            return {}
        if not replicated:
            for step in copies:
                files = [Path(self.folder, f"{step}-{rank}.npy") for rank in range(world.size)]
                copies[step] = torch.from_numpy(np.mean([np.load(file) for file in files], axis=0))
                for file in files:
                    file.unlink()
        return copies


def _accuracy(weights: Tensor, validation: Any) -> float:
    module = MODEL()
    vector_to_parameters(weights, module.parameters())
    with torch.inference_mode():
        scores = module(torch.from_numpy(validation.pixels).float() / 255)
    return float((scores.argmax(1) == torch.from_numpy(validation.digits)).float().mean())
