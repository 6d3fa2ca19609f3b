"""Functions that tests of Spark clusters run on executors."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import torch
from pyspark import BarrierTaskContext

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard
from sparkdl.spark.barrier import BarrierTask


@dataclass(frozen=True)
class Counting(BarrierTask):
    """Fails if a worker meets the others through Spark more than once: each time costs a second."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gather, calls = BarrierTaskContext.allGather, list[str]()

        def counted(context: BarrierTaskContext, message: str = "") -> list[str]:
            calls.append(message)
            return gather(context, message)

        with patch.object(BarrierTaskContext, "allGather", counted), patch.object(BarrierTaskContext, "barrier", None):
            yield from super().run(batches)
        assert len(calls) == 1


@dataclass(frozen=True)
class Killed:
    """SIGKILL for one worker, while the others wait for it in a collective."""

    rank: int

    def __call__(self, world: World, shard: Shard | None) -> None:
        for _ in range(2):
            world.group().sum_(torch.ones(8))
            if world.rank == self.rank:
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Held:
    """Keeps each worker until its pipe, ``<path>.<rank>``, is opened for writing and closed."""

    path: str

    def __call__(self, world: World, shard: Shard | None) -> int:
        with open(f"{self.path}.{world.rank}") as pipe:
            pipe.read()
        return world.rank


@dataclass(frozen=True)
class Stubborn(Held):
    """Rank 0 raises; the others wait for something that never comes, and notice nothing."""

    def __call__(self, world: World, shard: Shard | None) -> int:
        if world.rank == 0:
            raise ValueError("I give up")
        return super().__call__(world, shard)


def interface(world: World, shard: Shard | None) -> dict[str, Any]:
    """gloo's interface, and whether it works."""
    numbers = torch.ones(1)
    world.group().sum_(numbers)
    return {"interface": os.environ.get("GLOO_SOCKET_IFNAME"), "total": numbers.item()}


@dataclass(frozen=True)
class Slow:
    """A user's function in the query of the data that takes until ``path`` is opened for writing and closed."""

    path: str

    def __call__(self, value):
        if value == 0:
            with open(self.path) as pipe:
                pipe.read()
        return value
