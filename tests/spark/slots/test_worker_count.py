"""The default number of workers of a gang."""

from __future__ import annotations

from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from sparkdl.cluster.protocol import Capacity
from sparkdl.spark.session.classic import ClassicSession
from sparkdl.spark.slots import worker_count
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.slots.worker_count import choose_workers, concurrent_fits


def test_fits_of_nested_pools_are_multiplied() -> None:
    def inside(threads: int) -> list[int]:
        with ThreadPool(threads) as pool:
            return [concurrent_fits(), *pool.map(lambda _: concurrent_fits(), range(4), chunksize=1)]

    with ThreadPool(3) as pool:
        assert pool.map(inside, [1, 2]) == [[3, 3, 3, 3, 3], [3, 6, 6, 6, 6]]
    assert concurrent_fits() == 1


@pytest.mark.parametrize(
    ("rows", "settings", "expected"),
    [
        (0, {}, 1),
        (59, {}, 1),
        (60, {}, 2),
        (900, {}, 2),
        (0, {"previous": 2}, 2),
        (60, {"previous": 3}, 2),  # which the cluster cannot have again
        (0, {"least": 2}, 2),
        (60, {"least": 1, "previous": 1}, 2),  # the gang had shrunk
    ],
)
def test_all_slots_but_no_more_than_batches(spark: Any, rows: int, settings: dict[str, int], expected: int) -> None:
    """The session has two slots."""
    assert choose_workers(spark.range(rows), 30, TaskResources(), **settings) == expected


def test_slots_count_on_gpus_only_if_each_task_has_one(spark: Any) -> None:
    with pytest.warns(UserWarning, match=r"spark.task.resource.gpu.amount is not 1: .* one worker; set numWorkers"):
        assert choose_workers(spark.range(60), 30, TaskResources(), device="cuda") == 1
    spark.conf.set("spark.task.resource.gpu.amount", "1")
    try:
        assert choose_workers(spark.range(60), 30, TaskResources(), device="cuda") == 2
    finally:
        spark.conf.unset("spark.task.resource.gpu.amount")


def test_configured_slots_are_awaited_while_the_application_begins(spark: Any, monkeypatch: Any) -> None:
    """Two executors of eight have registered; a gang that may grow counts all."""
    awaited: list[tuple[int, float]] = []
    monkeypatch.setattr(worker_count, "find_slots", lambda _, __: Capacity(2, 8))
    monkeypatch.setattr(ClassicSession, "registration_wait", lambda _: 7.0)
    monkeypatch.setattr(
        worker_count, "wait_for_slots", lambda _, size, requests, timeout, report: awaited.append((size, timeout))
    )
    assert [choose_workers(spark.range(900), 30, TaskResources(), least=least) for least in (None, 2)] == [2, 8]
    assert awaited == [(8, 7.0)] * 2


def test_many_rows_are_not_counted_to_the_end(spark: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_count, "_MOST", 50)
    assert [choose_workers(spark.range(rows), 30, TaskResources()) for rows in (40, 50)] == [1, 2]


def test_fits_of_a_pool_share_the_slots(spark: Any) -> None:
    with ThreadPool(2) as pool:
        assert pool.map(lambda _: choose_workers(spark.range(60), 30, TaskResources()), range(2)) == [1, 1]
