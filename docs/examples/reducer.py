"""Gradients travel in half precision: half the bytes, about three digits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparkdl.cluster.group.world import Group
from sparkdl.training.cost.traffic import Hosts, Traffic, all_reduce
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce, Reducer, Reduction, sent_bytes


@dataclass(frozen=True)
class HalfPrecision(Reducer):
    def open(self, buckets: Sequence[Bucket], group: Group) -> Reduction:
        return HalfReduction(self, buckets, group)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        return [all_reduce(2 * bucket.buffer.numel(), hosts)]


class HalfReduction(Reduction):
    def __init__(self, reducer: Reducer, buckets: Sequence[Bucket], group: Group) -> None:
        self.group, self.sent = group, sent_bytes(reducer, buckets, group.size)

    @property
    def bytes_per_step(self) -> int:
        return self.sent

    def start(self, bucket: Bucket) -> PendingReduce:
        half = bucket.buffer.to(torch.bfloat16)
        return HalfExchange(bucket, half, self.group.sum_(half, wait=False))

    def state_dict(self) -> dict[str, object]:
        return {}  # error feedback would save its residuals here

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


@dataclass(frozen=True)
class HalfExchange(PendingReduce):
    bucket: Bucket
    half: torch.Tensor
    pending: PendingReduce

    def wait(self) -> None:
        self.pending.wait()
        self.bucket.buffer.copy_(self.half)
