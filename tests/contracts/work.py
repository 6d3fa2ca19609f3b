"""The work of workers in the contracts: top-level functions and frozen dataclasses, as users should write them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.telemetry.emit import record
from sparkdl.training.layouts import Layout, Replica
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def who(world: World, shard: Shard | None) -> dict[str, Any]:
    """A worker's view of itself and its process."""
    return {
        "rank": world.rank,
        "size": world.size,
        "local_rank": world.local_rank,
        "attempt": world.attempt,
        "host": world.host,
        "shard": shard,
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }


def make_a_mess(world: World, shard: Shard | None) -> dict[str, Any]:
    """Leave threads, variables and subgroups behind, and no group, as a careless function does."""
    before = who(world, shard)
    torch.set_num_threads(before["threads"] + 1)
    os.environ.update(RANK="77", WORLD_SIZE="78", LOCAL_RANK="79")
    if world.rank == 0:
        os.environ.update(MASTER_ADDR="nowhere.invalid", MASTER_PORT="1")
    dist.new_group(list(range(world.size)))
    world.all_gather_json("mess", {})  # a worker that leaves early breaks another's connect
    dist.destroy_process_group()
    return before


def total(world: World, shard: Shard | None) -> tuple[float, float]:
    """1 + ... + size, by torch.distributed and by the world's group."""
    by_torch, by_group = torch.tensor([world.rank + 1.0]), torch.tensor([world.rank + 1.0])
    dist.all_reduce(by_torch)
    world.group().sum_(by_group)
    return by_torch.item(), by_group.item()


def noted(world: World, shard: Shard | None) -> None:
    for value in range(3):
        record("noted", clock=world.clock, value=value, name=f"rank {world.rank}")


def says(world: World, shard: Shard | None) -> None:
    print(f"printed by {world.rank}")
    logging.getLogger("app").info("logged by %d", world.rank)


# ---- data -------------------------------------------------------------------------------------------------------


def rows(world: World, shard: Shard | None) -> dict[str, Any]:
    """The shard as arrays, rows in the shard's order."""
    assert shard is not None
    order = slice(None) if shard.order is None else shard.order
    return {
        "index": shard.index,
        "count": shard.count,
        "rows": shard.rows,
        "shards": shard.shard_rows,
        "columns": {name: tensor[order].numpy().copy() for name, tensor in shard.tensors.items()},
    }


def columns_of(inputs: str, target: str | None = None, *, row_id: str | None = None, **others: Any) -> Columns:
    """Columns from names that are separated by spaces."""
    label, number = (None if name is None else InputColumn(name) for name in (target, row_id))
    return Columns(tuple(map(InputColumn, inputs.split())), label, row_id=number, **others)


# ---- values and errors --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Large:
    """The last worker returns ``numbers`` numbers of four bytes, the others none."""

    numbers: int

    def __call__(self, world: World, shard: Shard | None) -> np.ndarray:
        return np.arange(self.numbers if world.rank == world.size - 1 else 0, dtype=np.uint32)


class Trap:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


@dataclass(frozen=True)
class Fails:
    """Raise on one rank, or on all with None, at a step; the others wait in a collective."""

    rank: int | None
    error: BaseException
    step: int = 0

    def __call__(self, world: World, shard: Shard | None) -> None:
        world.clock.step = self.step
        if self.rank in (None, world.rank):
            self.give_up()
        dist.all_reduce(torch.zeros(1))

    def give_up(self) -> None:
        raise self.error


@dataclass(frozen=True)
class Dies:
    """End one worker's process, by a signal or ``os._exit(3)``, while the others wait for it in a collective.

    ``orphan`` is a file for the pid of a forked child that outlives the process.
    """

    rank: int
    signal: signal.Signals | None = signal.SIGKILL
    orphan: str | None = None

    def __call__(self, world: World, shard: Shard | None) -> None:
        dist.all_reduce(torch.zeros(1))
        if world.rank == self.rank:
            if self.orphan is not None:
                child = os.fork()
                if child == 0:
                    signal.pause()
                    os._exit(0)
                Path(self.orphan).write_text(str(child), encoding="utf-8")
            if self.signal is None:
                os._exit(3)
            os.kill(os.getpid(), self.signal)
        dist.all_reduce(torch.zeros(1))


FEED = Feed(Plan((1,), 1))
"""The feed of a replica that a test places by itself."""


# ---- training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """``train``; a worker's start and end, and by the column ``row`` of row numbers the rows of each step."""

    training: Training
    row: str = "row"

    def __call__(self, world: World, shard: Shard | None) -> dict[str, Any]:
        assert shard is not None
        starts: list[dict[str, np.ndarray]] = []
        modules: list[nn.Module] = []

        def record_model() -> nn.Module:
            module = new_model(self.training)
            starts.append(arrays({name: one for name, one in module.state_dict().items() if not one.is_meta}))
            return module

        objective = replace(self.training.objective, model=record_model)
        layout = Recorded(self.training.layout, modules)
        trained = replace(self.training, objective=objective, layout=layout)(world, shard)
        module, start = modules[0], starts[0]
        return {
            "rank": world.rank,
            "history": trained.history,
            "weights": trained.weights,
            "report": trained.report,
            "clock": world.clock.state_dict(),
            "start": start,
            "parameters": arrays(dict(module.named_parameters(remove_duplicate=False))),
            "buffers": arrays(dict(module.named_buffers())),
            "seen": getattr(module, "seen", None),
            "steps": rows_of_steps(self.training, shard, self.row),
        }


@dataclass(frozen=True)
class Recorded(Layout):
    """A layout that records the module of its replica."""

    layout: Layout
    modules: list[nn.Module]

    def place(self, objective: Objective, world: World, feed: Feed) -> Replica:
        replica = self.layout.place(objective, world, feed)
        self.modules.append(replica.module)
        return replica

    def multiple(self, size: int) -> int:
        return self.layout.multiple(size)


def rows_of_steps(training: Training, shard: Shard, row: str) -> list[np.ndarray]:
    """The rows of a worker in each step of the run."""
    plan = Plan(shard.shard_rows, training.batch_size, training.seed, training.shuffle)
    numbered = replace(shard, columns=Columns((InputColumn(row),)))
    return [
        batch.inputs[0].numpy().copy()
        for epoch in range(training.epochs)
        for batch in Batcher(numbered, plan).batches(epoch)
    ]


def new_model(training: Training) -> nn.Module:
    model = training.objective.model
    assert not isinstance(model, nn.Module)
    return model()


def arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


# ---- models -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seeded:
    """A factory that builds the same weights everywhere and keeps the caller's random numbers."""

    build: Callable[[], nn.Module]
    seed: int = 0

    def __call__(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build()


class Net(nn.Module):
    """Two layers; ``outputs`` numbers a row, or with 0 one number without a dimension."""

    def __init__(self, inputs: int = 3, outputs: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, 8)
        self.head = nn.Linear(8, outputs or 1)
        self.squeezed = not outputs

    def forward(self, x: Tensor) -> Tensor:
        output = self.head(torch.tanh(self.hidden(x)))
        return output.squeeze(-1) if self.squeezed else output


class Classifier(Net):
    def __init__(self) -> None:
        super().__init__(outputs=4)


class Probability(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(4 * super().forward(x))


class Unused(Net):
    """A layer that no row uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)


class Gated(Net):
    """A layer that only rows with a positive first input use: some batches, or some workers, do not."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        chosen = x[:, 0] > 0
        if bool(chosen.any()):
            output = output + chosen * self.extra(x).squeeze(-1)
        return output


class Frozen(Net):
    """The first layer stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)


class Tied(nn.Module):
    """One weight used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).sum(-1)


class Normalised(nn.Module):
    """Batch normalisation of the input, whose statistics are the rows' statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x)).squeeze(-1)


class Lookup(nn.Module):
    """Two sparse embeddings: of the rounded numbers of a row, of which 0 has no gradient, and of a sum of them."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.Embedding(40, 2, padding_idx=0, sparse=True)
        self.bag = nn.EmbeddingBag(40, 2, mode="sum", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        ids = (8 * x).long().abs().clamp(max=39)
        bag = self.bag(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1]))
        return (self.numbers(ids).sum(1) * bag).sum(-1)


class LookupNet(Lookup):
    """Sparse embeddings beside a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = Net()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x) + self.dense(x)
        return output


class Masks(Net):
    """Dropout of ones, which shows the masks that a worker draws."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[np.ndarray] = []

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.functional.dropout(torch.ones(64, dtype=x.dtype), 0.5, self.training)
        self.seen.append(mask.numpy())
        return super().forward(x) * mask.mean()


class Constant(Net):
    """Random buffers of several dtypes besides the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.randn(5))
        self.register_buffer("mask", torch.randn(4, 4) > 0)
        self.register_buffer("index", torch.randint(0, 1000, (7,)))


class Stumbles(Net):
    """Raises on one rank in one forward pass."""

    def __init__(self, rank: int, step: int) -> None:
        super().__init__()
        self.rank, self.step, self.passes = rank, step, 0

    def forward(self, x: Tensor) -> Tensor:
        if int(os.environ["RANK"]) == self.rank and self.passes == self.step:
            raise ArithmeticError("stumbled over a row")
        self.passes += self.training
        return super().forward(x)
