"""The driver reduces the results of a round to the same bits in whatever order they come."""

from __future__ import annotations

import itertools

import torch

from sparkdl.cluster.tasks import TaskResult
from sparkdl.io.serialization import pack_state
from sparkdl.spark import tensor_chunks
from sparkdl.spark.tensor_chunks import Results
from tests.contracts.map_reduce_contract import Sums


def test_results_that_come_in_any_order_are_reduced_to_the_same_bits() -> None:
    """One at a time or all at once; added up in the order in which they come, they would be several sums."""
    numbers = (1e16, 1.0, -1e16, 0.1, 3.0)
    found = [TaskResult(part, {"sum": torch.tensor(each, dtype=torch.float64)}) for part, each in enumerate(numbers)]
    totals, sums = set(), set()
    for order in itertools.permutations(found):
        rows = [(each.index, tensor_chunks.RESULT_CHUNK, "", each.packed()) for each in order]
        for lots in ([rows], [[row] for row in rows]):
            results = Results(len(numbers))
            for lot in lots:
                results.take(lot)
            totals.add(pack_state(results.reduced(Sums())))
        sums.add(sum(numbers[each.index] for each in order))
    assert len(totals) == 1
    assert len(sums) > 1
