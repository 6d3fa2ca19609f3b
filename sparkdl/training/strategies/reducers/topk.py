"""The largest gradients only, with error feedback.

Worker ``i`` adds its residual ``e_i`` to its gradient ``g_i`` of a parameter. It sends the ``k`` elements with the
largest magnitudes, and remembers the others:

    a_i = g_i + e_i
    s_i = top_k(a_i),        k = ceil(ratio * elements of the parameter)
    e_i = a_i - s_i
    g   = sum_i s_i          (in rank order, on every worker)

S. Stich, J.-B. Cordonnier and M. Jaggi, Sparsified SGD with memory, 2018, arXiv:1809.07599; Y. Lin et al., Deep
gradient compression, 2018, arXiv:1712.01887. The latter's momentum correction and clipping belong to the optimizer;
this reducer sees gradients only.

torch has no such hook.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.cluster.group.world import Group
from sparkdl.io.fields import CheckedFields, Share
from sparkdl.training.cost.traffic import Hosts, Traffic, all_gather, at_once
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce, sent_bytes
from sparkdl.training.strategies.reducers.pending import FinishedReduce, OneExchange
from sparkdl.training.strategies.reducers.residuals import check_real, drop_nonfinite_, load_tensors, zero_residual


@dataclass(frozen=True)
class TopK(CheckedFields):
    """Each worker sends the largest elements of each gradient and remembers the others.

    Every worker receives the elements of all others, so bytes grow with the number of workers ``N``. Below a ratio of
    about ``1 / N`` they are fewer than those of uncompressed sums. A residual takes the memory of the gradients.

    Attributes:
        ratio: the share of the elements of each parameter that a worker sends, above 0 and at most 1; at least one.
    """

    ratio: Share = 0.01

    def open(self, buckets: Sequence[Bucket], group: Group) -> TopKReduction:
        """Open the reducer."""
        check_real(self, buckets)
        return TopKReduction(self, buckets, group)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """All-gathers of values with the counts, and of indices."""
        sent = sum(self.counts(bucket))
        values = (sent + len(bucket.used)) * bucket.buffer.element_size()
        return [at_once(all_gather(size, hosts) for size in (values, sent * index_dtype(bucket).itemsize))]

    def counts(self, bucket: Bucket) -> list[int]:
        """The number of elements of each gradient that a worker sends."""
        return [math.ceil(self.ratio * gradient.numel()) for gradient in bucket.gradients]


def index_dtype(bucket: Bucket) -> torch.dtype:
    """The dtype of indices into the bucket; four bytes suffice for a buffer of 8 GiB."""
    return torch.int32 if bucket.buffer.numel() < 2**31 else torch.int64


class TopKReduction:
    """An all-gather of values and indices."""

    def __init__(self, reducer: TopK, buckets: Sequence[Bucket], group: Group) -> None:
        self._reducer, self._group = reducer, group
        self.bytes_per_step = sent_bytes(reducer, buckets, group.size)
        self._sparse = {bucket.index: _Sparse(bucket, reducer, group.size) for bucket in buckets}

    def start(self, bucket: Bucket) -> PendingReduce:
        """Select the largest elements and start to gather them."""
        if self._group.size == 1:
            return FinishedReduce()
        sparse = self._sparse[bucket.index]
        sparse.select()
        exchanges = [
            self._group.all_gather_into(sparse.all_values, sparse.values, wait=False),
            self._group.all_gather_into(sparse.all_indices, sparse.indices, wait=False),
        ]
        return OneExchange(exchanges, sparse.add)

    def state_dict(self) -> dict[str, Any]:
        """This worker's residuals."""
        return {"residuals": [sparse.residual for sparse in self._sparse.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this worker's residuals."""
        load_tensors(self._reducer, self.state_dict(), state)


class _Sparse:
    """The elements of a bucket that travel: values, then the counts of workers; and indices into the buffer."""

    def __init__(self, bucket: Bucket, reducer: TopK, workers: int) -> None:
        self._bucket = bucket
        self._sizes = [gradient.numel() for gradient in bucket.gradients]
        self._counts = reducer.counts(bucket)
        elements, sent = sum(self._sizes), sum(self._counts)
        self.residual = zero_residual(bucket, elements)
        self.values = bucket.buffer.new_empty(sent + len(bucket.used))
        self.indices = bucket.buffer.new_empty(sent, dtype=index_dtype(bucket))
        self.all_values = self.values.new_empty(workers, len(self.values))
        self.all_indices = self.indices.new_empty(workers, sent)

    def select(self) -> None:
        residual, values = self.residual, self.values[: len(self.indices)]
        residual += self._bucket.buffer[: len(residual)]
        first = sent = 0
        for size, count in zip(self._sizes, self._counts, strict=True):
            chosen = residual[first : first + size].abs().topk(count, sorted=False).indices + first
            self.indices[sent : sent + count] = chosen
            values[sent : sent + count] = residual[chosen]
            residual[chosen] -= values[sent : sent + count]  # not 0 if the values travel in a narrower dtype
            first, sent = first + size, sent + count
        self.values[sent:] = self._bucket.used
        drop_nonfinite_(residual, values)

    def add(self) -> None:
        """Sum all workers' elements in rank order, which makes the sums bit-identical on all workers."""
        buffer, sent = self._bucket.buffer, len(self.indices)
        buffer.zero_()
        for values, indices in zip(self.all_values, self.all_indices, strict=True):
            buffer.index_add_(0, indices, values[:sent])  # no index occurs twice: a GPU adds in a fixed order too
            self._bucket.used.add_(values[sent:])
