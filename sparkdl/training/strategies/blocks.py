"""Blocks of local steps: when workers exchange, and how they sum a tensor for each parameter.

A block is the local steps between two exchanges. It ends after ``every`` steps and at each epoch's end, where all
replicas have to be equal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.telemetry.emit import notify
from sparkdl.training.layouts import Replica
from sparkdl.training.strategies import Sync, exchange_phase
from sparkdl.training.strategies.bucketed import BlockStrategy
from sparkdl.training.strategies.buckets import make_buckets
from sparkdl.training.strategies.reducers.exact import Exact


class BlockCounter:
    """Counts the steps of the current block.

    Attributes:
        steps: finished steps of the block.
        warn: whether this worker warns if an epoch is shorter than a block.
    """

    def __init__(self, every: int, *, warn: bool) -> None:
        self.steps = 0
        self.warn = warn
        self._every = every
        self._length_checked = False  # whether a block had all its steps, or a warning said that none has

    def step(self) -> bool:
        """Count a step; return whether it ends the block."""
        self.steps += 1
        if self.steps < self._every:
            return False
        self.steps, self._length_checked = 0, True
        return True

    def end_epoch(self) -> bool:
        """End the block with the epoch; return whether it has steps. Warns once if no block has had all its steps."""
        steps, self.steps = self.steps, 0
        if steps and not self._length_checked:
            if self.warn:
                notify(
                    f"every={self._every} is ignored: the epoch ended its only block after step {steps} of "
                    f"{self._every}, with an exchange of all workers. Lower every, or batchSize."
                )
            self._length_checked = True
        return bool(steps)

    def state_dict(self) -> dict[str, Any]:
        """Steps of the block, and whether a warning is needless."""
        return {"steps": self.steps, "settled": self._length_checked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.steps, self._length_checked = state["steps"], state["settled"]


class LocalSteps(Sync):
    """Local steps of one replica; a strategy adds the exchange of a block, and what makes replicas equal.

    An exchange sums one tensor for each parameter. ``_terms`` has by parameter this worker's term before ``_sum`` and
    the sum after it; these are views into ``_buckets``.

    Args:
        strategy: the hyperparameters of blocks.
        replica: the replica.
        group: the workers.
    """

    replicated = False

    def __init__(self, strategy: BlockStrategy, replica: Replica, group: Group) -> None:
        self.replica, self.group, self._every = replica, group, strategy.every
        self._buckets = make_buckets(replica.parameters, strategy.bucket_bytes)
        terms: dict[int, Tensor] = {}
        for bucket in self._buckets:
            terms |= zip(bucket.parameters, bucket.gradients, strict=True)
        self._terms = [terms[index] for index in range(len(replica.parameters))]
        self._exchanged = self._buckets if group.size > 1 else []
        self._reduction = (strategy.reduce or Exact()).open(self._exchanged, group)
        self._block = BlockCounter(strategy.every, warn=group.rank == 0)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends per step on average, if blocks have ``every`` steps; buffers excluded."""
        return self._reduction.bytes_per_step // self._every

    def update(self, clock: Clock, batch: Batch) -> None:
        """Take a local step; exchange if the block ends."""
        self.replica.apply()
        if self._block.step():
            self._exchange()

    def end_epoch(self, share: float) -> None:
        """Make all replicas equal."""
        self._equalise()
        super().end_epoch(share)

    def _sum(self) -> None:
        """Replace all terms by their sums; on one worker they are the sums."""
        with exchange_phase():
            for pending in [self._reduction.start(bucket) for bucket in self._exchanged]:
                pending.wait()
        for bucket in self._buckets:
            bucket.used.fill_(1)

    @torch.no_grad()
    def _fill(self, weights: Mapping[int, Tensor]) -> None:
        for index, value in weights.items():
            self.replica.parameters[index].copy_(value)

    @abstractmethod
    def _exchange(self) -> None:
        """Exchange at the end of a block."""

    @abstractmethod
    def _equalise(self) -> None:
        """End the block with the epoch, and give all replicas equal weights."""
