"""What members do in the tests of Spark clusters, beside what the contracts have them do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from pyspark import BarrierTaskContext

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard
from sparkdl.spark.barrier import BarrierTask


@dataclass(frozen=True)
class Counting(BarrierTask):
    """Fails where a member meets the others through Spark more than once: each time costs a second."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        calls: list[str] = []
        gather, barrier = BarrierTaskContext.allGather, BarrierTaskContext.barrier

        def counted(context: BarrierTaskContext, message: str = "") -> list[str]:
            calls.append("allGather")
            return gather(context, message)

        def counted_too(context: BarrierTaskContext) -> None:
            calls.append("barrier")
            barrier(context)

        BarrierTaskContext.allGather, BarrierTaskContext.barrier = counted, counted_too
        try:
            yield from super().run(batches)
        finally:
            BarrierTaskContext.allGather, BarrierTaskContext.barrier = gather, barrier
        assert calls == ["allGather"]


@dataclass(frozen=True)
class Killed:
    """SIGKILL for one member, between two steps of which the others wait for it in the second."""

    rank: int

    def __call__(self, world: World, part: Shard | None) -> None:
        group, numbers = world.group(), torch.ones(8)
        group.sum_(numbers)
        if world.rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        group.sum_(numbers)


@dataclass(frozen=True)
class Held:
    """Keeps each member until somebody opens its pipe, ``<path>.<rank>``, for writing: nobody has to sleep."""

    path: str

    def __call__(self, world: World, part: Shard | None) -> int:
        with open(f"{self.path}.{world.rank}") as pipe:
            pipe.read()
        return world.rank


@dataclass(frozen=True)
class Stubborn(Held):
    """Rank 0 gives up; the others wait for something that never comes, and notice nothing."""

    def __call__(self, world: World, part: Shard | None) -> int:
        if world.rank == 0:
            raise ValueError("I give up")
        return super().__call__(world, part)


def interface(world: World, part: Shard | None) -> dict[str, Any]:
    """The interface that gloo was told to use, and whether it works."""
    numbers = torch.ones(1)
    world.group().sum_(numbers)
    return {"interface": os.environ.get("GLOO_SOCKET_IFNAME"), "total": numbers.item()}


@dataclass(frozen=True)
class Slow:
    """A user's function in the lineage of the data that takes until somebody opens ``path`` for writing."""

    path: str

    def __call__(self, value):
        if value == 0:
            with open(self.path) as pipe:
                pipe.read()
        return value
