"""What a layout knows of a gang's rows before a worker reads its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan
from sparkdl.errors import InvalidInput


class Feed:
    """The plan of the gang's shards, the same on all workers, and after ``open`` a spare row.

    Args:
        plan: the plan of all rows, validation rows included.
        micro_batches: micro-batches of a step.
        validated: whether some of the rows are validation rows.
        sample: reads the first rows of this worker's shard.
        saved: reads the ``layout_state`` of the run's newest checkpoint; default: there is none.

    Attributes:
        micro_batches: micro-batches of a step.
        seed: of the run.
        saved: reads the ``layout_state`` of the replica in the newest checkpoint.
    """

    def __init__(
        self,
        plan: Plan,
        micro_batches: int = 1,
        *,
        validated: bool = False,
        sample: Callable[[], Batch] | None = None,
        saved: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.micro_batches, self.seed = micro_batches, plan.seed
        self._sample, self.saved = sample, saved
        self._plan, self._validated = plan, validated
        self._spare: Batch | None = None

    def most_rows(self, ranks: Collection[int]) -> int:
        """The most rows that the workers of these ranks together have in a step.

        With validation rows the number is an upper bound, since no worker has read yet which rows these are. Before the
        first step, the probe has up to 32 rows of each worker.
        """
        plan = self._plan
        if self._validated:
            return min(plan.batch_size, sum(plan.rows[rank] for rank in ranks))
        before = (sum(plan.offsets(step)[rank] for rank in ranks) for step in range(plan.steps + 1))
        return max((after - first for first, after in itertools.pairwise(before)), default=0)

    def sample(self) -> Batch:
        """Up to 32 of this worker's rows, on the CPU, for a layout that times the model in ``place``.

        Raises:
            InvalidInput: the feed is not that of a gang.
        """
        if self._sample is None:
            raise InvalidInput("the feed has no rows; expected the feed of a gang, or a layout that needs no sample.")
        return self._sample()

    def open(self, spare: Batch | None) -> None:
        """Set the spare row, once the workers have read their rows."""
        self._spare = spare

    def spare_row(self) -> Batch:
        """A row for workers without rows, on their device: a batch of one row that counts nothing.

        Raises:
            InvalidInput: the workers have not read their rows.
        """
        if self._spare is None:
            raise InvalidInput("there is no spare row yet; a layout asks for it in a pass, not in place().")
        return self._spare
