"""Uncompressed sum of buckets.

In a ring of ``N`` workers each worker sends ``2 (N - 1) / N`` times the bytes of a bucket: P. Patarasuk and X. Yuan,
Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.group.world import Group
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce, sent_bytes
from sparkdl.training.strategies.traffic import Hosts, Traffic, all_reduce, one_per_host


def ring_bytes(size: int, workers: int) -> int:
    """Bytes that each worker sends in a ring all-reduce of ``size`` bytes."""
    return int(all_reduce(size, one_per_host(workers)).bytes)


@dataclass(frozen=True)
class Exact:
    """Uncompressed sum by the backend's all-reduce (a ring in gloo, a ring or a tree in NCCL)."""

    def open(self, buckets: Sequence[Bucket], group: Group) -> ExactReduction:
        """Open the reducer."""
        return ExactReduction(self, buckets, group)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Traffic:
        """A ring all-reduce of the bucket's buffer."""
        return all_reduce(bucket.buffer.nbytes, hosts)


class ExactReduction:
    """The backend's all-reduce; it has no state."""

    def __init__(self, reducer: Exact, buckets: Sequence[Bucket], group: Group) -> None:
        self._reducer, self._buckets, self._group = reducer, buckets, group

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends by the ring."""
        return sent_bytes(self._reducer, self._buckets, self._group.size)

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start the backend's all-reduce of the bucket's buffer."""
        exchange: PendingReduce = self._group.sum_(bucket.buffer, wait=False)
        return exchange

    def state_dict(self) -> dict[str, Any]:
        """An empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the empty state."""
