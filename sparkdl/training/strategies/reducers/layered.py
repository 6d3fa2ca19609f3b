"""Layered sum of buckets: inside each subgroup of workers, then among one leader of each (layered SGD, LSGD).

A subgroup ``S_h`` has the workers of one host, the first of them as its leader. ``b_i`` is worker ``i``'s bucket:

    s_h = sum of b_i over i in S_h      the leader of S_h receives the sum of its subgroup
    s   = sum of s_h over h             the leaders all-reduce, the only bytes between hosts
    b_i = s                             each leader broadcasts to its subgroup

This is the sum of all workers: K. Yu, T. Flynn, S. Yoo and N. D'Imperio, Layered SGD: A decentralized and synchronous
SGD algorithm for scalable deep neural network training, 2020, arXiv:1906.05936. All workers end with the bytes of the
leaders' all-reduce, so they are bit-identical. The result differs from ``Exact`` by rounding, since the order of
additions differs.

The first sum of a bucket starts in the backward pass, when the bucket is full. The exchange of the leaders and the
broadcast follow in a thread, in the order of buckets, while the backward pass computes earlier layers. The paper
overlaps the leaders' exchange with loading, for which sparkdl has a thread of its own.

In a ring of ``H`` leaders each sends ``2 (H - 1) / H`` times the bytes of a bucket. In ``Exact``'s ring of all workers
each connection between hosts carries ``2 (N - 1) / N`` times these bytes. Two hosts with two workers each send 2/3 of
``Exact``'s bytes between hosts, and 1/3 if the ranks of the hosts alternate.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.mesh import Rule, by_host, consecutive, leaders, split
from sparkdl.cluster.group.peers import reaching_peers
from sparkdl.cluster.group.world import Group
from sparkdl.io.fields import CheckedFields, Count
from sparkdl.io.threads import in_background
from sparkdl.training.cost.traffic import Hosts, Traffic, layered
from sparkdl.training.strategies.buckets import Bucket
from sparkdl.training.strategies.reducers import PendingReduce, Reduction
from sparkdl.training.strategies.reducers.exact import ring_bytes


@dataclass(frozen=True)
class Layered(CheckedFields):
    """Sum inside each host, then among one leader of each host; the sum of ``Exact`` up to rounding.

    It sends fewer bytes between hosts if hosts have several workers. On one host, or with one worker on each, it has no
    advantage. Paper: Layered SGD, arXiv:1906.05936.

    Attributes:
        inner: workers of a subgroup, of consecutive ranks; the last subgroup has the remainder. Default: the workers of
            each host, by the names of the workers' hosts.

    Raises:
        InvalidInput: ``inner`` is below 1.
    """

    inner: Count | None = None

    def open(self, buckets: Sequence[Bucket], group: Group) -> LayeredReduction:
        """Open the reducer; this connects the workers of each subgroup, and the leaders."""
        return LayeredReduction(buckets, group, self._rule)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """Inside the subgroups, and a ring of their leaders."""
        groups = self._rule([*map(str, hosts)])
        return [layered(bucket.buffer.nbytes, [[hosts[rank] for rank in group] for group in groups])]

    @property
    def _rule(self) -> Rule:
        return by_host if self.inner is None else partial(consecutive, size=self.inner)


class LayeredReduction(Reduction):
    """Layered sum; it has no state."""

    def __init__(self, buckets: Sequence[Bucket], group: Group, rule: Rule) -> None:
        self._buckets, self._group = buckets, group
        self._subgroups = rule(group.hosts)
        # Two groups of the same workers: sums and broadcasts interleave differently on leaders and others.
        self._sums, self._broadcasts = split(group, rule), split(group, rule)
        self._leaders = split(group, lambda hosts: leaders(rule(hosts)))
        self._last: Future[Any] | None = None
        self._stream: Any = torch.cuda.Stream() if group.nccl else None  # type: ignore[no-untyped-call]

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends: a leader to other leaders and to its subgroup, the others to their leader.

        Gloo broadcasts by a tree: in subgroups of more than two workers, others send some of the leader's bytes.
        """
        return sum(self._sent(bucket.buffer.nbytes) for bucket in self._buckets)

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start to sum a bucket inside the subgroup; the rest follows in a thread, under NCCL on a stream."""
        if self._stream is not None:
            return self._enqueue(bucket.buffer)
        summed = self._sums.sum_(bucket.buffer, to=0, wait=False)
        before, self._last = self._last, None
        self._last = in_background(partial(self._exchange, bucket.buffer, summed, before), "sparkdl-layered")
        return _Pending(self._last)

    def _exchange(self, buffer: Tensor, summed: Any, before: Future[Any] | None) -> Any:
        if before is not None:
            before.result()  # every worker exchanges the buckets in the same order
        on_device = torch.cuda.device_of(buffer)  # type: ignore[no-untyped-call]
        with on_device, reaching_peers():  # a new thread begins on GPU 0
            if summed is not None:
                summed.wait()
            self._leaders.sum_(buffer)
            return self._broadcasts.broadcast_(buffer, wait=False)

    def _enqueue(self, buffer: Tensor) -> PendingReduce:
        # NCCL wants the collectives of all its groups in one order on every worker, so no thread starts any of them.
        self._stream.wait_stream(torch.cuda.current_stream())
        pending: Any = None
        with torch.cuda.stream(self._stream):
            for start in (
                partial(self._sums.sum_, to=0, wait=False),
                partial(self._leaders.sum_, wait=False),
                partial(self._broadcasts.broadcast_, wait=False),
            ):
                if pending is not None:
                    pending.synchronize()  # the stream waits, the thread does not
                pending = start(buffer) or pending
        work: PendingReduce = pending
        return work

    def _sent(self, size: int) -> int:
        subgroup = next(one for one in self._subgroups if self._group.rank in one)
        if self._group.rank != subgroup[0]:
            return size
        inside = (len(subgroup) - 1) * size + ring_bytes(size, len(subgroup)) // 2  # gloo reduces by a ring
        return inside + ring_bytes(size, len(self._subgroups))


@dataclass(frozen=True)
class _Pending:
    exchange: Future[Any]

    def wait(self) -> None:
        broadcast = self.exchange.result()
        if broadcast is not None:
            broadcast.wait()
