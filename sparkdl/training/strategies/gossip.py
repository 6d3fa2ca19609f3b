"""Gossip: workers average with their neighbours in a graph, and with nobody else.

    x_i'  = sum_j W_ij x_j               after ``every`` local steps of each worker

x_i are the weights of worker i. The mixing matrix W is doubly stochastic, so that the mean of the replicas stays:

* ``"ring"``: worker i has the neighbours i - 1 and i + 1 modulo N. W_ij = 1/3 for them and for i itself; of two workers
  each counts 1/2.
* ``"random"``: each exchange draws a perfect matching of the workers from ``seed``. Both workers of a pair take the
  pair's mean; of an odd number of workers one keeps its weights.

X. Lian et al., Can decentralized algorithms outperform centralized algorithms? A case study for decentralized parallel
stochastic gradient descent, NIPS 2017 (D-PSGD, on a ring); S. Boyd et al., Randomized gossip algorithms, 2006 (random
pairs). The consensus is the mean of the replicas, and each exchange shrinks the distance to it by a factor. On a ring,
the factor comes close to 1 as N grows. Each epoch's end sets all replicas to their mean, from which training continues:
Y. Chen et al., Accelerating gossip SGD with periodic global averaging, ICML 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.data.sampler import generator
from sparkdl.io.fields import Count, Seed, one_of
from sparkdl.training.cost import traffic
from sparkdl.training.cost.traffic import Hosts, Traffic
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies import exchange_phase
from sparkdl.training.strategies.blocks import LocalSteps
from sparkdl.training.strategies.bucketed import BUCKET_BYTES, BlockStrategy
from sparkdl.training.strategies.buckets import Bucket

GRAPHS = ("ring", "random")


@dataclass(frozen=True)
class Gossip(BlockStrategy):
    """Workers train alone, and every few steps each one averages its weights with its neighbours.

    Each epoch's end sets all replicas to their mean, so that validation, the result and checkpoints have equal
    replicas. Training continues from the mean. All workers count the same, whatever their rows. Optimizer, scheduler
    and ``maxGradNorm`` are each worker's own. A worker holds one more copy of the weights, and for each neighbour a
    bucket.

    Attributes:
        graph: ``"ring"``, with two neighbours, or ``"random"``, with one that changes in each exchange.
        every: steps between two exchanges.
        seed: of the random pairs, the same on all workers.
        bucket_bytes: bytes of a bucket.

    Raises:
        InvalidInput: a field is out of range.
    """

    graph: Annotated[str, one_of(GRAPHS)] = "ring"
    every: Count = 1
    seed: Seed = 0
    bucket_bytes: Count = BUCKET_BYTES

    def attach(self, replica: Replica, group: Group) -> GossipSync:
        """Attach to the replica."""
        return GossipSync(self, replica, group)

    def traffic(self, bucket: Bucket, hosts: Hosts) -> Sequence[Traffic]:
        """The messages between neighbours.

        The workers of a random pair count as half of the ranks apart. An odd number of workers counts as if none
        rested.
        """
        hops = (1, -1) if self.graph == "ring" else (len(hosts) // 2,)
        return [traffic.neighbours(bucket.buffer.nbytes, hosts, hops)]


def neighbours(strategy: Gossip, rank: int, size: int, exchange: int) -> list[int]:
    """The ranks with which worker ``rank`` of ``size`` averages in an exchange, a number from 0."""
    if strategy.graph == "ring":
        return sorted({(rank - 1) % size, (rank + 1) % size} - {rank})
    order = torch.randperm(size, generator=generator(strategy.seed, exchange)).tolist()
    place = order.index(rank)
    partner = place + 1 - 2 * (place % 2)  # places 0 and 1 are a pair, 2 and 3, and so on
    return [order[partner]] if partner < size else []


class GossipSync(LocalSteps):
    """Gossip attached to one replica."""

    def __init__(self, strategy: Gossip, replica: Replica, group: Group) -> None:
        super().__init__(strategy, replica, group)
        self._strategy = strategy
        self._exchanges = 0
        self._diverged = False  # whether this worker has stepped since all replicas were equal

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends per step on average, if blocks have ``every`` steps."""
        size = self.group.size
        sent = sum(bucket.buffer.nbytes for bucket in self._buckets)
        partners = min(2, size - 1) if self._strategy.graph == "ring" else (size - size % 2) / size
        return int(partners * sent) // self._strategy.every

    def update(self, clock: Clock, batch: Batch) -> None:
        """Take a local step; exchange if the block ends."""
        self._diverged = True
        super().update(clock, batch)

    def detach(self) -> None:
        """Set all replicas to their mean, unless they are."""
        if self._diverged:
            self._equalise()

    @torch.no_grad()
    def _equalise(self) -> None:
        """Set all replicas to their mean."""
        self._block.end_epoch()
        for term, x in zip(self._terms, self.replica.parameters, strict=True):
            torch.div(x, self.group.size, out=term)
        self._sum()
        self._fill(dict(enumerate(self._terms)))
        self._diverged = False

    def state_dict(self) -> dict[str, Any]:
        """The block's progress, and the number of exchanges, from which random pairs follow."""
        return {"shared": {"block": self._block.state_dict(), "exchanges": self._exchanges}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self._block.load_state_dict(state["shared"]["block"])
        self._exchanges = state["shared"]["exchanges"]

    @torch.no_grad()
    def _exchange(self) -> None:
        peers = neighbours(self._strategy, self.group.rank, self.group.size, self._exchanges)
        self._exchanges += 1
        if not peers:
            return
        for term, x in zip(self._terms, self.replica.parameters, strict=True):
            term.copy_(x)
        for bucket in self._buckets:
            self._average(bucket, peers)
        self._fill(dict(enumerate(self._terms)))

    def _average(self, bucket: Bucket, peers: list[int]) -> None:
        with exchange_phase():
            received = self.group.send_recv(bucket.buffer, peers)
        for tensor in received:
            bucket.buffer.add_(tensor)
        bucket.buffer.div_(len(peers) + 1)
