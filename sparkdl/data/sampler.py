"""Which rows make up which step: pure arithmetic, the same on every member.

Part ``r`` of ``R`` has ``n_r`` rows, ``N = sum_r n_r``. The ``j``-th row that part ``r`` gives in an epoch has the
position ``(2 j + 1) / (2 n_r)`` in it, and all rows of all parts are taken in the order of their positions, ties in
part order: step ``s`` takes the rows ``s B`` to ``min((s + 1) B, N)`` of that order, ``B`` being the global batch.
So every step but the last has exactly ``B`` rows, no part runs dry before the others whatever their sizes, every
row comes exactly once, and each number follows from ``(n_1 ... n_R, B, r, s)`` alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparkdl.errors import InvalidInput


@dataclass(frozen=True)
class Plan:
    """How an epoch's rows are dealt into steps.

    Attributes:
        rows: rows of each part, by rank.
        batch_size: rows of the GLOBAL batch.
        seed: seed of the permutations.
        shuffle: False takes each part in row-id order.
    """

    rows: tuple[int, ...]
    batch_size: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidInput(f"batchSize is {self.batch_size}; expected at least 1.")

    @property
    def total(self) -> int:
        """Rows of all parts together."""
        return sum(self.rows)

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same on every member."""
        return -(-self.total // self.batch_size)

    def size(self, step: int) -> int:
        """Rows of the global batch of a step."""
        return self._reached(step + 1) - self._reached(step)

    def count(self, rank: int, step: int) -> int:
        """Rows that a part gives to a step."""
        return self.offset(rank, step + 1) - self.offset(rank, step)

    def offset(self, rank: int, step: int) -> int:
        """Rows that a part has given before a step."""
        return self.offsets(step)[rank]

    def offsets(self, step: int) -> tuple[int, ...]:
        """Rows that each part has given before a step: the first ``s B`` rows of the order, counted by part."""
        target, total = self._reached(step), self.total
        if target >= total:
            return self.rows
        # All rows whose position is at most target / N; that many or up to R / 2 more or fewer than wanted ...
        given = [(2 * target * rows + total) // (2 * total) for rows in self.rows]
        # ... and the order itself for the few that are left.
        missing = target - sum(given)
        if missing:
            self._settle(given, missing)
        return tuple(given)

    def _settle(self, given: list[int], missing: int) -> None:
        """Give the ``missing`` rows that come next in the order, or take back those that came last."""
        way = 1 if missing > 0 else -1
        widest = max(self.rows)

        def more(rank: int) -> bool:
            return given[rank] < self.rows[rank] if way > 0 else given[rank] > 0

        def entry(rank: int) -> tuple[int, int]:
            row = given[rank] if way > 0 else given[rank] - 1
            # Positions that differ do so by 1 / (2 max n)^2 or more: times (2 max n)^2 and rounded down, they keep
            # their order and their ties, and are whole numbers, which compare ten times as fast as fractions.
            return way * ((2 * row + 1) * 2 * widest * widest // self.rows[rank]), way * rank

        heap = [entry(rank) for rank in range(len(given)) if more(rank)]
        heapq.heapify(heap)
        for _ in range(abs(missing)):
            rank = abs(heap[0][1])
            given[rank] += way
            if more(rank):
                heapq.heapreplace(heap, entry(rank))
            else:
                heapq.heappop(heap)

    def permutation(self, rank: int, epoch: int) -> Tensor:
        """The order in which a part gives its rows in an epoch: int32 or int64 ``[rows]``."""
        rows = self.rows[rank]
        dtype = torch.int32 if rows <= torch.iinfo(torch.int32).max else torch.int64
        if not self.shuffle:
            return torch.arange(rows, dtype=dtype)
        return torch.randperm(rows, generator=generator(self.seed, epoch, rank), dtype=dtype)

    def _reached(self, step: int) -> int:
        return min(step * self.batch_size, self.total)


def generator(*key: int) -> torch.Generator:
    """A generator that depends on the key alone, for example ``(seed, epoch, position)``."""
    # Numpy strings the words of the numbers together and forgets zeros at the end; with their count and two words for
    # each, no two keys give the same string.
    words = [word for part in key for word in divmod(part & 0xFFFFFFFFFFFFFFFF, 1 << 32)]
    state = np.random.SeedSequence([len(key), *words]).generate_state(1, np.uint64)
    made = torch.Generator()
    made.manual_seed(int(state[0]) & 0x7FFFFFFFFFFFFFFF)
    return made
