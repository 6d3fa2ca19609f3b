"""The work of workers that sum buckets with a reducer, and the exact sums for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.shard import Shard
from sparkdl.training.strategies.buckets import Bucket, make_buckets
from sparkdl.training.strategies.reducers import Reducer
from sparkdl.training.strategies.reducers.exact import ring_bytes

# Matrices, a convolution, a vector, a scalar and an empty matrix; sizes that eight does not divide.
SHAPES = ((13, 7), (5,), (3, 4, 2, 2), (), (40, 24), (0, 3), (30, 31))
SEVERAL = 4000  # bytes of a bucket: in float64, three buckets of 1, 2 and 4 of these parameters


def gradient(shape: Sequence[int], step: int, rank: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """A worker's gradient; that of rank 1 weighs twice as much, and a third worker has no rows."""
    generator = torch.Generator().manual_seed(1000 * step + rank + 1)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype) * (1, 2, 0)[rank % 3]


def count(parameter: int, step: int, rank: int) -> float:
    """Whether a worker has a gradient of a parameter; for large counts, 1000 of its workers are one."""
    return float((parameter + step + rank) % 2) * 1001


class Counting(Group):
    """A group that counts the bytes that this worker sends."""

    sent = 0

    def sum_(self, tensor: Tensor, *, wait: bool = True) -> Any:
        self.sent += ring_bytes(tensor.nbytes, self.size)
        return super().sum_(tensor, wait=wait)

    def all_gather_into(self, gathered: Tensor, tensor: Tensor, *, wait: bool = True) -> Any:
        self.sent += (self.size - 1) * tensor.nbytes
        return super().all_gather_into(gathered, tensor, wait=wait)

    def all_to_all_into(self, received: Tensor, tensor: Tensor, *, wait: bool = True) -> Any:
        self.sent += (self.size - 1) * tensor.nbytes // self.size
        return super().all_to_all_into(received, tensor, wait=wait)


@dataclass(frozen=True)
class Reduce:
    """Sum gradients of some steps.

    Attributes:
        steps: first step and the step after the last.
        states: by rank, of an earlier ``Reduce``, which this one resumes.
        poison: a step in which rank 0 has an infinite gradient.
        scale: multiplies the gradients, which are then rounded to integers; None for none of both.
    """

    reducer: Reducer
    steps: tuple[int, int] = (0, 4)
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    dtype: torch.dtype = torch.float64
    bucket_bytes: int = SEVERAL
    states: tuple[dict[str, Any], ...] = ()
    poison: int | None = None
    scale: float | None = None

    def __call__(self, world: World, shard: Shard | None) -> dict[str, Any]:
        parameters = [nn.Parameter(torch.zeros(shape, dtype=self.dtype)) for shape in self.shapes]
        buckets = make_buckets(parameters, self.bucket_bytes)
        group = Counting(**vars(world.group()))
        reduction = self.reducer.open(buckets, group)
        if self.states:
            reduction.load_state_dict(self.states[world.rank])
        sums, sizes = [], []
        for step in range(*self.steps):
            self.fill(buckets, step, world.rank)
            group.sent = 0
            for pending in [reduction.start(bucket) for bucket in buckets]:
                pending.wait()
            sums.append([bucket.buffer.clone() for bucket in buckets])
            sizes.append((reduction.bytes_per_step, group.sent))
        return {"sums": sums, "bytes": sizes, "state": reduction.state_dict()}

    def fill(self, buckets: Sequence[Bucket], step: int, rank: int) -> None:
        """Set the buckets to a worker's gradients and counts."""
        for bucket in buckets:
            for slot, (index, target) in enumerate(zip(bucket.parameters, bucket.gradients, strict=True)):
                value = gradient(target.shape, 100 * step + index, rank, dtype=self.dtype)
                target.copy_(value if self.scale is None else (value * self.scale).round())
                bucket.used[slot] = count(index, step, rank)
                if step == self.poison and rank == 0 and target.numel():
                    target.view(-1)[0] = torch.inf

    def exact(self, workers: int) -> list[list[Tensor]]:
        """The true sums, by step and bucket."""
        parameters = [nn.Parameter(torch.zeros(shape, dtype=self.dtype)) for shape in self.shapes]
        buckets, sums = make_buckets(parameters, self.bucket_bytes), []
        for step in range(*self.steps):
            totals = [torch.zeros_like(bucket.buffer) for bucket in buckets]
            for rank in range(workers):
                self.fill(buckets, step, rank)
                for total, bucket in zip(totals, buckets, strict=True):
                    total.add_(bucket.buffer)
            sums.append(totals)
        return sums
