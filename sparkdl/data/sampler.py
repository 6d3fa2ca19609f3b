"""Assignment of rows to steps: pure arithmetic, equal on all workers.

Shard ``r`` of ``R`` has ``n_r`` rows, ``N = sum_r n_r``. Its ``j``-th row in an epoch has the position
``(2 j + 1) / (2 n_r)``. All rows are sorted by position, ties by shard. With ``B`` the global batch size, step ``s``
takes the rows ``s B`` to ``min((s + 1) B, N)`` of that order. So every step but the last has exactly ``B`` rows, every
row occurs exactly once, and shards of any sizes run out together.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparkdl.io.fields import CheckedFields, Count, Natural, Seed


@dataclass(frozen=True)
class Plan(CheckedFields):
    """Assigns an epoch's rows to steps.

    Attributes:
        rows: rows of each shard, by rank.
        batch_size: rows of the GLOBAL batch.
        seed: seed of the permutations.
        shuffle: False takes each shard in row-id order.
        drop_last: whether an epoch leaves out its last step if that has fewer rows, unless it is the only one.
    """

    rows: tuple[Natural, ...]
    batch_size: Count
    seed: Seed = 0
    shuffle: bool = True
    drop_last: bool = False

    @property
    def total(self) -> int:
        """Rows of all shards together."""
        return sum(self.rows)

    @property
    def steps(self) -> int:
        """Steps of an epoch, equal on all workers."""
        full = self.total // self.batch_size
        return full if self.drop_last and full else -(-self.total // self.batch_size)

    def size(self, step: int) -> int:
        """Rows of a step's global batch."""
        return self._reached(step + 1) - self._reached(step)

    def count(self, rank: int, step: int) -> int:
        """Rows that a shard contributes to a step."""
        return self.offset(rank, step + 1) - self.offset(rank, step)

    def offset(self, rank: int, step: int) -> int:
        """Rows that a shard contributes before a step."""
        return self.offsets(step)[rank]

    def offsets(self, step: int) -> tuple[int, ...]:
        """Rows that each shard contributes before a step: the first ``s B`` rows of the order, counted by shard."""
        target, total = self._reached(step), self.total
        if target >= total:
            return self.rows
        # All rows with a position of at most target / N: the count is off by up to R / 2, which the order settles.
        taken = [(2 * target * rows + total) // (2 * total) for rows in self.rows]
        self._rebalance(taken, target - sum(taken))
        return tuple(taken)

    def _rebalance(self, taken: list[int], missing: int) -> None:
        if not missing:
            return
        way = 1 if missing > 0 else -1
        widest = max(self.rows)

        def more(rank: int) -> bool:
            return taken[rank] < self.rows[rank] if way > 0 else taken[rank] > 0

        def entry(rank: int) -> tuple[int, int]:
            row = taken[rank] if way > 0 else taken[rank] - 1
            # Distinct positions differ by at least 1 / (2 max n)^2: times (2 max n)^2 and rounded down, they keep
            # order and ties, and integers compare ten times as fast as fractions.
            return way * ((2 * row + 1) * 2 * widest * widest // self.rows[rank]), way * rank

        heap = [entry(rank) for rank in range(len(taken)) if more(rank)]
        heapq.heapify(heap)
        for _ in range(abs(missing)):
            rank = abs(heap[0][1])
            taken[rank] += way
            if more(rank):
                heapq.heapreplace(heap, entry(rank))
            else:
                heapq.heappop(heap)

    def permutation(self, rank: int, epoch: int) -> Tensor:
        """Order of a shard's rows in an epoch, int32 or int64 ``[rows]``."""
        rows = self.rows[rank]
        dtype = torch.int32 if rows <= torch.iinfo(torch.int32).max else torch.int64
        if not self.shuffle:
            return torch.arange(rows, dtype=dtype)
        return torch.randperm(rows, generator=generator(self.seed, epoch, rank), dtype=dtype)

    def _reached(self, step: int) -> int:
        return min(step * self.batch_size, self.total)


def generator(*key: int) -> torch.Generator:
    """A random generator that depends on the key alone, for example ``(seed, epoch, position)``."""
    # SeedSequence concatenates the numbers' words and drops trailing zeros; with a count and two words per number,
    # different keys give different sequences.
    words = [word for number in key for word in divmod(number & 0xFFFFFFFFFFFFFFFF, 1 << 32)]
    state = np.random.SeedSequence([len(key), *words]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) & 0x7FFFFFFFFFFFFFFF)
