"""Gradients travel in half precision: half the bytes, about three digits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce, Reducer, Reduction
from sparkdl.training.strategies.reducers.exact import ring_bytes


@dataclass(frozen=True)
class HalfPrecision(Reducer):
    def open(self, buckets: Sequence[Bucket], group: Group) -> Reduction:
        return HalfReduction(buckets, group)


class HalfReduction(Reduction):
    def __init__(self, buckets: Sequence[Bucket], group: Group) -> None:
        self.buckets, self.group = buckets, group

    @property
    def bytes_per_step(self) -> int:
        return sum(ring_bytes(2 * bucket.buffer.numel(), self.group.size) for bucket in self.buckets)

    def start(self, bucket: Bucket) -> PendingReduce:
        half = bucket.buffer.to(torch.bfloat16)
        return HalfExchange(bucket, half, self.group.sum_(half, wait=False))

    def state_dict(self) -> dict[str, Any]:
        return {}  # error feedback would save its residuals here

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass(frozen=True)
class HalfExchange(PendingReduce):
    bucket: Bucket
    half: Tensor
    pending: Any  # of torch.distributed

    def wait(self) -> None:
        self.pending.wait()
        self.bucket.buffer.copy_(self.half)
