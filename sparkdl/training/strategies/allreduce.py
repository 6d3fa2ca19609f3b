"""Synchronous data-parallel SGD by all-reduce.

``g_i`` is the gradient of worker ``i``'s local mean loss, ``p_i`` its share of the global batch. Every worker steps on

    g = sum_i p_i g_i,        sum_i p_i = 1,

the gradient of the mean over the global batch. The algorithm equals one machine with that batch, for any number of
workers and any sizes of shards. Workers without rows participate with ``p_i = 0``.

Buckets of gradients are summed while the backward pass still computes earlier layers (S. Li et al., PyTorch
Distributed: Experiences on accelerating data parallel training, 2020, arXiv:2006.15704; ring all-reduce: P. Patarasuk
and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).

Sparse gradients of ``nn.Embedding(sparse=True)`` stay sparse, so that ``torch.optim.SparseAdam`` takes them:
``sparse`` sums the rows that workers touched.

Workers are bit-identical after each step. Results differ from one machine's by rounding, since the order of additions
differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import Count
from sparkdl.telemetry.emit import notify
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies import Sync, exchange_phase
from sparkdl.training.strategies.bucketed import BUCKET_BYTES, BucketStrategy
from sparkdl.training.strategies.buckets import Bucket, make_buckets
from sparkdl.training.strategies.reducers import PendingReduce, Reducer
from sparkdl.training.strategies.reducers.exact import Exact
from sparkdl.training.strategies.sparse import SparseSum, sparse_parameters


@dataclass(frozen=True)
class AllReduce(BucketStrategy):
    """Every worker takes the same step on the mean gradient of the global batch.

    Attributes:
        reduce: how a bucket is summed; sparse gradients are in no bucket, and their sums are exact.
        bucket_bytes: bytes of a bucket; larger buckets use the network better, smaller ones overlap more.
    """

    reduce: Reducer = field(default_factory=Exact)
    bucket_bytes: Count = BUCKET_BYTES

    def attach(self, replica: Replica, group: Group) -> AllReduceSync:
        """Attach to the replica."""
        return AllReduceSync(self, replica, group)


class AllReduceSync(Sync):
    """All-reduce attached to one replica; a group of one only applies its gradients."""

    replicated = True

    def __init__(self, strategy: AllReduce, replica: Replica, group: Group) -> None:
        self.replica, self.group = replica, group
        parameters = replica.parameters if group.size > 1 else []
        self._sparse = {
            index: SparseSum(parameters[index], group) for index in sparse_parameters(replica.module, parameters)
        }
        self._buckets: list[Bucket] = make_buckets(parameters, strategy.bucket_bytes, leave_out=self._sparse)
        self._slots = {
            parameter: (bucket, slot) for bucket in self._buckets for slot, parameter in enumerate(bucket.parameters)
        }
        self._reduction = strategy.reduce.open(self._buckets, group)
        if self._sparse and group.rank == 0 and not isinstance(strategy.reduce, Exact):
            notify(f"{strategy.reduce} leaves out {len(self._sparse)} sparse gradients: workers sum them exactly.")
        self.begin(1.0)
        replica.sink = self if self._buckets else None

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends per step; for sparse gradients, the bytes that it sent in the last step."""
        return self._reduction.bytes_per_step + sum(one.bytes for one in self._sparse.values())

    def begin(self, share: float) -> None:
        """Reset the buckets for a backward pass."""
        self._share, self._waiting = share, set(self._slots)
        self._left = [len(bucket.parameters) for bucket in self._buckets]
        self._under_way: list[PendingReduce] = []
        self._unused: list[int] = []

    def ready(self, index: int) -> None:
        """Copy a dense gradient into its bucket, and start to reduce each bucket that is full."""
        if index in self._sparse:
            return
        if index not in self._waiting:
            raise InvalidInput(
                "a parameter got several gradients in one backward pass, for example from reentrant checkpoints that "
                "share it; expected one. Use torch.utils.checkpoint(use_reentrant=False)."
            )
        bucket, slot = self._slots[index]
        parameter = self.replica.parameters[index]
        gradient = parameter.grad
        if gradient is None:
            bucket.gradients[slot].zero_()
            bucket.used[slot] = 0
            self._unused.append(index)
        elif gradient.is_sparse:
            raise InvalidInput(
                f"a parameter {list(parameter.shape)} has a sparse gradient; expected one of nn.Embedding(sparse=True) "
                "or nn.EmbeddingBag(sparse=True), whose weight no other module has. Else set sparse=False."
            )
        else:
            torch.mul(gradient, self._share, out=bucket.gradients[slot])
            parameter.grad = None
        self._waiting.discard(index)
        self._left[bucket.index] -= 1
        # In bucket order on every worker, since the backend matches collectives by their order.
        while len(self._under_way) < len(self._buckets) and not self._left[len(self._under_way)]:
            self._under_way.append(self._reduction.start(self._buckets[len(self._under_way)]))

    def finish(self) -> None:
        """Mark the remaining parameters as ready, without a gradient."""
        for index in sorted(self._waiting, reverse=True):
            self.ready(index)

    def update(self, clock: Clock, batch: Batch) -> None:
        """Wait for the sums and apply them."""
        self.reduce(batch.weight_fraction)
        self.replica.apply()

    def reduce(self, share: float) -> None:
        """Wait for the sums, and set the gradients to them; ``share`` is this worker's share of the step."""
        with exchange_phase():
            for exchange in self._under_way:
                exchange.wait()
            for index, rows in self._sparse.items():
                parameter = self.replica.parameters[index]
                parameter.grad = rows.reduce(parameter.grad, share)
        nobody = self._unused_by_all()
        for index, (bucket, slot) in self._slots.items():
            # As on one machine, the optimizer skips a parameter that no row of the global batch used.
            self.replica.parameters[index].grad = None if index in nobody else bucket.gradients[slot]
        for bucket in self._buckets:
            bucket.used.fill_(1)
        self._under_way = []

    def _unused_by_all(self) -> set[int]:
        if not self._unused:
            return set()
        slots = [self._slots[index] for index in self._unused]
        # One tensor, since a GPU stops for each one that the host reads.
        used = torch.stack([(bucket.used[slot] != 0) | bucket.gradients[slot].any() for bucket, slot in slots])
        return {index for index, is_used in zip(self._unused, used.tolist(), strict=True) if not is_used}

    def detach(self) -> None:
        """Detach from the replica's gradients."""
        self.replica.sink = None

    def state_dict(self) -> dict[str, Any]:
        """The reduction's state."""
        return self._reduction.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the reduction's state."""
        self._reduction.load_state_dict(state)
