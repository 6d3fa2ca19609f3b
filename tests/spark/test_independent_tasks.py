"""What tasks do that are not reduced, without Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.tasks import TaskResult
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.spark.independent_tasks import EachTask, attempts
from tests.contracts.map_reduce_contract import Whole
from tests.spark.test_executor_tasks import COLUMNS, LAYOUT, MARKS, ROWS, disk, pack  # noqa: F401 - a fixture


def blocks(*parts: int) -> list[Any]:
    """Packed rows as tasks are given them."""
    return [SimpleNamespace(**row) for part in parts for row in pack(part, ROWS[part], "packed elsewhere")]


def task() -> EachTask:
    every = blocks(0, 1, 2)
    assert every
    marks = tuple(MARKS.get(part, "") for part in range(len(ROWS)))
    return EachTask(ship(Whole()), "key", COLUMNS, ROWS, marks, layout=LAYOUT, indices=(0, 2), attempts=1)


def found(task: EachTask, rows: list[Any], *, whole: bool, partition: int = 0) -> list[TaskResult]:
    run = task.all_rows if whole else task.part
    return [TaskResult.unpacked(packed) for _, packed in run(partition, iter(rows))]


@pytest.mark.parametrize("whole", [True, False])
def test_input_that_ends_too_early_is_not_mapped_and_is_not_left_on_the_disk(disk, whole):  # noqa: F811
    """As pyspark's worker sees it where a task's input fails."""
    all_of_it = blocks(0, 2) if whole else blocks(2)
    partition = 0 if whole else 2
    for rows in ([], all_of_it[:-1]):
        with pytest.raises(EOFError, match="rows came before the input ended"):
            found(task(), rows, whole=whole, partition=partition)
    (one,) = found(task(), all_of_it, whole=whole, partition=partition)
    assert one.trouble is None
    assert len(one.note["ids"]) == (sum(ROWS) if whole else ROWS[2])
    with pytest.raises(EOFError):  # the rows are there by now, and still the task has failed
        found(task(), all_of_it[:-1], whole=whole, partition=partition)


@pytest.mark.parametrize(
    ("master", "given", "wanted"),
    [
        ("spark://host:7077", None, 4),
        ("spark://host:7077", "7", 7),
        ("local-cluster[2,1,1024]", "2", 2),
        ("local[4]", "7", 1),
        ("local[*,3]", None, 3),
    ],
)
def test_as_often_as_spark_tries_a_task(master, given, wanted):
    conf = SimpleNamespace(get=lambda name, default: default if given is None else given)
    assert attempts(SimpleNamespace(master=master, getConf=lambda: conf)) == wanted  # type: ignore[arg-type]


def test_a_part_that_came_back_in_another_order_is_not_mapped(disk):  # noqa: F811
    """All rows are there, and have other numbers than those by which they were drawn."""
    before = task()
    changed = replace(before, fingerprints=(before.fingerprints[0][:-1] + "x", *before.fingerprints[1:]))
    rows = iter(blocks(0, 1, 2))
    (one,) = [TaskResult.unpacked(packed) for _, packed in changed.all_rows(0, rows)]
    with pytest.raises(InvalidInput, match="member 0: its rows have come back different"):
        raise one.error("member 0")
    assert next(rows, None) is None
    (one,) = found(before, blocks(0, 1, 2), whole=True)
    assert one.trouble is None
