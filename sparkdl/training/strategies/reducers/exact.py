"""Uncompressed sum of buckets.

In a ring of ``N`` workers each worker sends ``2 (N - 1) / N`` times the bytes of a bucket: P. Patarasuk and X. Yuan,
Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.group.peers import reaching_peers
from sparkdl.cluster.group.world import Group
from sparkdl.training.cost.traffic import Hosts, Traffic, all_reduce
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce, Reducer, sent_bytes
from sparkdl.training.strategies.reducers.pending import OneExchange


def ring_bytes(size: int, workers: int) -> int:
    """Bytes that each worker sends in a ring all-reduce of ``size`` bytes."""
    return 2 * (workers - 1) * size // workers


@dataclass(frozen=True)
class Exact:
    """Uncompressed sum by the backend's all-reduce (a ring in gloo, a ring or a tree in NCCL)."""

    def open(self, buckets: Sequence[Bucket], group: Group) -> ExactReduction:
        """Open the reducer."""
        return ExactReduction(self, buckets, group)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """A ring all-reduce of the bucket's buffer."""
        return [all_reduce(bucket.buffer.nbytes, hosts)]


class ExactReduction:
    """The backend's all-reduce; it has no state.

    Under NCCL a step does not wait for its sums, its stream does. If a sum fails or exceeds the group's timeout, it
    raises one step later, when the bucket starts again; the epoch's end waits for all.
    """

    def __init__(self, reducer: Reducer, buckets: Sequence[Bucket], group: Group) -> None:
        self._group, self.bytes_per_step = group, sent_bytes(reducer, buckets, group.size)
        self._last: dict[int, Any] = {}  # by bucket, under NCCL: the sum of the step before

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start the backend's all-reduce of the bucket's buffer."""
        if bucket.index in self._last:
            with reaching_peers():
                self._last.pop(bucket.index).wait()
        exchange = self._group.sum_(bucket.buffer, wait=False)
        if not self._group.nccl:
            return OneExchange([exchange])
        self._last[bucket.index] = exchange
        return OneExchange([], exchange.synchronize)  # the current stream waits for the sum, and the thread does not

    def state_dict(self) -> dict[str, Any]:
        """An empty state, once no sum is pending: a checkpoint holds no step whose sum failed."""
        with reaching_peers():
            while self._last:
                self._last.popitem()[1].wait()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the empty state."""
