"""The default number of workers of a gang."""

from __future__ import annotations

from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from sparkdl.spark.worker_count import choose_workers, fits_at_once


def test_threads_of_a_pool_count_those_of_their_own_pool() -> None:
    def inside(threads: int) -> list[int]:
        with ThreadPool(threads) as pool:
            return [fits_at_once(), *pool.map(lambda _: fits_at_once(), range(4), chunksize=1)]

    with ThreadPool(3) as pool:
        assert pool.map(inside, [1, 2]) == [[3, 1, 1, 1, 1], [3, 2, 2, 2, 2]]
    assert fits_at_once() == 1


@pytest.mark.parametrize(
    ("rows", "before", "expected"), [(0, None, 1), (59, None, 1), (60, None, 2), (900, None, 2), (0, 2, 2), (60, 3, 2)]
)
def test_all_slots_but_no_more_than_batches(spark: Any, rows: int, before: int | None, expected: int) -> None:
    """The session has two slots; a run that had three workers cannot have them again."""
    assert choose_workers(spark.range(rows), 30, before=before) == expected


def test_fits_of_a_pool_share_the_slots(spark: Any) -> None:
    with ThreadPool(2) as pool:
        assert pool.map(lambda _: choose_workers(spark.range(60), 30), range(2)) == [1, 1]
