"""Tasks without a reduction, without Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.tasks import TaskResult
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.spark.executor_tasks import PackedData
from sparkdl.spark.independent_tasks import EachTask, attempts
from tests.contracts.map_reduce_contract import Whole
from tests.spark.test_executor_tasks import COLUMNS, LAYOUT, MARKS, ROWS, disk, pack  # noqa: F401 - a fixture


def blocks(*shards: int) -> list[Any]:
    """Packed rows as tasks get them."""
    return [SimpleNamespace(**row) for shard in shards for row in pack(shard, ROWS[shard], "packed elsewhere")]


@pytest.fixture
def task(disk) -> EachTask:  # noqa: F811
    assert blocks(0, 1, 2)
    marks = tuple(MARKS.get(shard, "") for shard in range(len(ROWS)))
    return EachTask(ship(Whole()), PackedData("key", COLUMNS, ROWS, marks, LAYOUT), indices=(0, 2), attempts=1)


@pytest.mark.parametrize("whole", [True, False])
def test_truncated_input_is_neither_mapped_nor_stored(task, whole):
    # If a task's input fails, pyspark's worker sees its end.
    rows, partition = (blocks(0, 2), 0) if whole else (blocks(2), 2)

    def run(rows: list[Any]) -> list[TaskResult]:
        return [TaskResult.unpacked(found) for _, found in (task.all_rows if whole else task.shard)(partition, rows)]

    for few in ([], rows[:-1]):
        with pytest.raises(EOFError, match="rows came before the input ended"):
            run(few)
    (one,) = run(rows)
    assert one.trouble is None
    assert len(one.note["ids"]) == (sum(ROWS) if whole else ROWS[2])
    with pytest.raises(EOFError):  # also if the rows are stored
        run(rows[:-1])


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("spark://host:7077", None, 4),
        ("spark://host:7077", "7", 7),
        ("local-cluster[2,1,1024]", "2", 2),
        ("local[4]", "7", 1),
        ("local[*,3]", None, 3),
    ],
)
def test_attempts_of_a_task(master, given, expected):
    conf = SimpleNamespace(get=lambda name, default: default if given is None else given)
    assert attempts(SimpleNamespace(master=master, getConf=lambda: conf)) == expected  # type: ignore[arg-type]


def test_reordered_shard_is_not_mapped(task):
    # All rows are there, with other row ids.
    first, *others = task.data.fingerprints
    changed = replace(task, data=replace(task.data, fingerprints=(first[:-1] + "x", *others)))
    rows = iter(blocks(0, 1, 2))
    (one,) = [TaskResult.unpacked(packed) for _, packed in changed.all_rows(0, rows)]
    with pytest.raises(InvalidInput, match="member 0: after an executor was lost, Spark recomputed its rows"):
        raise one.error("member 0")
    assert next(rows, None) is None
    (one,) = [TaskResult.unpacked(packed) for _, packed in task.all_rows(0, blocks(0, 1, 2))]
    assert one.trouble is None
