"""Tasks of rounds on executors, and the results that the driver assembles, without Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.sql import Row as SparkRow

from sparkdl.cluster.tasks import MapReduce, TaskResult, Tensors, raise_on_failure
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state
from sparkdl.spark import tensor_chunks
from sparkdl.spark.executor_tasks import MapTask, PackedData, PackTask, ReduceTask, delete_files, first_rows, store_of
from sparkdl.spark.tensor_chunks import RESULT_CHUNK, Results, TaskRow, assembled
from tests.contracts.map_reduce_contract import Kinds, Raises, Sums

COLUMNS = Columns((InputColumn("x"),), row_id=InputColumn("id", "int64"), floating="float64")
LAYOUT = {"x": ("float64", (3,)), "id": ("int64", ())}
ROWS = (40, 0, 25)
MARKS: dict[int, str] = {}
KINDS = {"shard": pa.int32(), "piece": pa.int32(), "name": pa.string(), "payload": pa.binary()}
MISSING = ("missing", b"")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executor's local disk."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


def partition(index: int, x: Any, ids: Any) -> pa.RecordBatch:
    """A partition as it comes from the JVM."""
    x = pa.FixedSizeListArray.from_arrays(pa.array(x), 3)
    return pa.RecordBatch.from_arrays(
        [x, pa.array(ids), pa.array([index] * len(ids), pa.int32())], names=["0", "1", "2"]
    )


def pack(index: int, rows: int, key: str = "key") -> list[dict[str, Any]]:
    """The rows of a packed partition."""
    random = np.random.default_rng(index)
    ids = random.permutation(rows) + 1000 * index
    batch = partition(index, random.normal(size=rows * 3), ids)
    batches = [batch.slice(0, 0), batch.slice(0, rows // 2), batch.slice(rows // 2)]
    packed = [row for found in PackTask(COLUMNS, ("x", "id"), key).run(batches) for row in found.to_pylist()]
    MARKS[index] = json.loads(packed[0]["about"])["fingerprint"] if packed else ""
    return packed


@pytest.fixture
def blocks(disk: Path) -> list[SparkRow]:
    """The packed rows of shard 0."""
    return [SparkRow(**row) for row in pack(0, 40)]


@pytest.fixture
def packed(disk: Path) -> None:
    """All shards are packed."""
    for shard, rows in enumerate(ROWS):
        pack(shard, rows)


def task(work: MapReduce, *, most: int = 1 << 20, cut: bool = False) -> MapTask:
    """A round's task."""
    marks = tuple(MARKS.get(shard, "") for shard in range(len(ROWS)))
    data = PackedData("key", COLUMNS, ROWS, marks, LAYOUT)
    return MapTask(ship(work), pack_state({"factor": 1.0}), data, most, cut)


def mapped(work: MapReduce, shards: Any = (0, 1, 2), **options: Any) -> list[TaskRow]:
    return [row for shard in shards for row in task(work, **options).run(shard, iter([]))]


def results(count: int, rows: Any) -> Results:
    found = Results(count)
    found.take(rows)
    return found


def reduced(rows: list[TaskRow], work: MapReduce) -> list[TaskRow]:
    """The chunks as Spark sorts them, reduced."""
    ordered = sorted((row for row in rows if row[1] >= 0), key=lambda row: (row[1], row[0]))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*ordered, strict=True), KINDS.values(), strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=list(KINDS))
    found = ReduceTask(ship(work)).run([batch.slice(0, 3), batch.slice(3)])
    return [tuple(row.values()) for each in found for row in each.to_pylist()]


# ---- packing and mapping ---------------------------------------------------------------------------------------------


def test_packed_partition_is_mapped_from_disk(blocks: list[SparkRow]) -> None:
    [row] = blocks
    assert (row.shard, row.block, row.rows) == (0, 0, 40)
    assert json.loads(row.about)["layout"] == {"x": ["float64", [3]], "id": ["int64", []]}
    [[*_, name, payload]] = task(Sums()).run(0, iter(["a row"]))
    assert name == ""
    assert TaskResult.unpacked(payload).note["ids"] == list(range(40))


def test_partition_without_rows_is_mapped(disk: Path) -> None:
    assert pack(1, 0) == []
    found = results(3, task(Sums()).run(1, iter([])))
    assert found.absent == [0, 2]
    assert (found.found[0].index, found.found[0].tensors["sum"].tolist()) == (1, [0.0, 0.0, 0.0])


def test_missing_shard_is_built_from_its_blocks(disk: Path, blocks: list[SparkRow]) -> None:
    [before] = mapped(Sums(), [0])
    delete_files("key", iter([1, 2]))
    assert list(disk.iterdir()) == []
    [missing] = mapped(Sums(), [0])
    assert missing[2:] == MISSING
    [first, *_] = first_rows(blocks)
    assert first[:2] == (0, 40)
    assert list(task(Sums()).build_some([1], 0, iter(blocks))) == []
    for _ in range(2):
        assert list(task(Sums()).build_some([0], 0, iter(blocks))) == [before]
        assert [each.name for each in disk.iterdir()] == ["sparkdl-shards-key"]
    assert mapped(Sums(), [0]) == [before]
    assert list(task(Sums()).build(iter([]))) == []


def test_other_rows_than_packed_raise(blocks: list[SparkRow]) -> None:
    MARKS[0] = MARKS[0].replace("40-", "41-")
    [missing] = mapped(Sums(), [0])
    assert missing[2:] == MISSING
    with pytest.raises(InvalidInput, match="shard 0 in round 3: after an executor was lost, Spark recomputed its rows"):
        raise_on_failure(results(1, task(Sums()).build(iter(blocks))).found, 3)


def test_shard_with_truncated_input_is_built_again(blocks: list[SparkRow]) -> None:
    # If a task's input fails, pyspark's worker sees its end.
    [before] = mapped(Sums(), [0])
    mark = MARKS[0]
    store_of("key", 0).discard(0)
    short = [SparkRow(**row) for row in pack(0, 30)]
    MARKS[0] = mark
    [missing] = mapped(Sums(), [0])
    assert missing[2:] == MISSING
    with pytest.raises(EOFError, match="30 of 40 rows came before the input ended"):
        list(task(Sums()).build(iter(short)))
    assert list(task(Sums()).build(iter(blocks))) == [before]


def test_invalid_values_are_reported_and_leave_no_files(disk: Path) -> None:
    batch = partition(2, [1.0, float("nan"), 0.0] * 4, range(4))
    [found] = PackTask(COLUMNS, ("x", "id"), "key").run(iter([batch, batch]))
    [row] = found.to_pylist()
    assert row["shard"] == 2
    assert "NaN" in json.loads(row["about"])["trouble"]
    assert list(disk.iterdir()) == []


# ---- chunks and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [Sums(large=1000), Kinds()])
def test_reduced_chunks_equal_reduced_tensors(packed: None, monkeypatch: pytest.MonkeyPatch, work: MapReduce) -> None:
    whole = results(3, mapped(work))
    monkeypatch.setattr(tensor_chunks, "_PIECE", 1 << 8)
    rows = mapped(work, most=0, cut=True)
    cut = results(3, (row for row in rows if row[1] < 0))
    chunks = reduced(rows, Sums())
    assert [count for count, *_ in chunks] == [3] * cut.pieces
    found, expected = assembled(reversed(chunks)), whole.reduced(work)
    assert list(found) == list(expected)
    assert cut.bytes == sum(tensor.nbytes for tensor in expected.values())
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert [found[name].dtype for name in found] == [tensor.dtype for tensor in expected.values()]
    assert cut.notes == whole.notes


def test_large_result_is_left_out_unless_it_is_cut(disk: Path) -> None:
    pack(0, 40)
    found = results(1, mapped(Sums(), [0], most=10))
    assert (found.large, found.pieces) == (True, 0)
    found = results(1, mapped(Sums(), [0], cut=True))  # a small result is never cut
    assert found.pieces == 0
    assert found.reduced(Sums())["rows"] == 40


def test_error_is_a_result(packed: None) -> None:
    rows = mapped(Raises(kind=InvalidInput), most=0, cut=True)
    with pytest.raises(InvalidInput, match="shard 1 in round 2: no such thing"):
        raise_on_failure(results(3, (row for row in rows if row[1] < 0)).found, 2)


class Widens(Sums):
    """Halves whose sums are floats."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        return {"half": torch.full((5,), 0.25, dtype=torch.float16)}, None

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        return {name: tensor.float() + other[name].float() for name, tensor in one.items()}


def test_reduction_may_change_dtype(packed: None) -> None:
    rows = mapped(Widens(), [0, 2], most=0, cut=True)
    assert torch.equal(assembled(reduced(rows, Widens()))["half"], torch.full((5,), 0.5))


def test_chunks_of_absent_shard_do_not_count_later(packed: None) -> None:
    # A lost shard may be mapped again on an executor with its files, after it was built elsewhere.
    rows = mapped(Sums(large=100), most=0, cut=True)
    assert list(tensor_chunks.pieces([2], rows)) == [row for row in rows if row[1] >= 0 and row[0] != 2]


def test_order_of_arrival_does_not_change_the_sum() -> None:
    numbers = (1e16, 1.0, -1e16, 0.1, 3.0)  # their running sums depend on the order
    found = [TaskResult(shard, {"sum": torch.tensor(each, dtype=torch.float64)}) for shard, each in enumerate(numbers)]
    totals, sums = set(), set()
    for order in itertools.permutations(found):
        rows: Iterator[TaskRow] = ((each.index, RESULT_CHUNK, "", each.packed()) for each in order)
        one_by_one, together = Results(len(numbers)), [*rows]
        for row in together:
            one_by_one.take([row])
        totals |= {pack_state(each.reduced(Sums())) for each in (one_by_one, results(len(numbers), together))}
        sums.add(sum(numbers[each.index] for each in order))
    assert len(totals) == 1
    assert len(sums) > 1
