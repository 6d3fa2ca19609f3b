"""What rounds run on executors, and what the driver makes of it, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.sql import Row as SparkRow

from sparkdl.cluster.tasks import MapReduce, Tensors, raise_on_failure
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state
from sparkdl.spark import executor_tasks, tensor_chunks
from sparkdl.spark.executor_tasks import MapTask, PackTask, ReduceTask, delete_files, first_rows, store_of
from sparkdl.spark.tensor_chunks import Results, TaskRow, assembled
from tests.contracts.map_reduce_contract import Kinds, Raises, Sums

COLUMNS = Columns((InputColumn("x"),), row_id=InputColumn("id", "int64"), floating="float64")
LAYOUT = {"x": ("float64", (3,)), "id": ("int64", ())}
ROWS = (40, 0, 25)
MARKS: dict[int, str] = {}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executor's local disk."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


def batches(part: int, rows: int) -> Iterator[pa.RecordBatch]:
    """A partition as it comes from the JVM, with an empty batch in it."""
    random = np.random.default_rng(part)
    ids = random.permutation(rows) + 1000 * part
    x = pa.FixedSizeListArray.from_arrays(pa.array(random.normal(size=rows * 3)), 3)
    whole = pa.RecordBatch.from_arrays([x, pa.array(ids), pa.array([part] * rows, pa.int32())], names=["0", "1", "2"])
    yield whole.slice(0, 0)
    yield whole.slice(0, rows // 2)
    yield whole.slice(rows // 2)


def pack(part: int, rows: int, key: str = "key") -> list[dict[str, Any]]:
    """The rows of a packed partition."""
    task = PackTask(COLUMNS, ("x", "id"), key)
    packed = [row for batch in task.run(batches(part, rows)) for row in batch.to_pylist()]
    MARKS[part] = json.loads(packed[0]["about"])["fingerprint"] if packed else ""
    return packed


def task(work: MapReduce, *, most: int = 1 << 20, cut: bool = False) -> MapTask:
    """A round's task."""
    state = pack_state({"factor": 1.0})
    marks = tuple(MARKS.get(part, "") for part in range(len(ROWS)))
    return MapTask(ship(work), state, "key", COLUMNS, ROWS, marks, LAYOUT, most, cut)


def mapped(work: MapReduce, **options: Any) -> list[TaskRow]:
    """What all parts come to."""
    return [row for part in range(len(ROWS)) for row in task(work, **options).run(part, iter([]))]


def pieces(rows: list[TaskRow]) -> list[TaskRow]:
    """The pieces as Spark sorts them, reduced."""
    ordered = sorted((row for row in rows if row[1] >= 0), key=lambda row: (row[1], row[0]))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*ordered, strict=True), KINDS, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=["part", "piece", "name", "payload"])
    return [
        tuple(row.values()) for each in ReduceTask(ship(Sums())).run([batch.slice(0, 3), batch.slice(3)])
        for row in each.to_pylist()
    ]  # fmt: skip


KINDS = (pa.int32(), pa.int32(), pa.string(), pa.binary())


def test_a_packed_partition_is_on_disk_and_in_blocks(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = pack(0, 40)
    about = json.loads(row["about"])
    assert (row["part"], row["block"], row["rows"]) == (0, 0, 40)
    assert about["layout"] == {"x": ["float64", [3]], "id": ["int64", []]}
    [[_, _, name, payload]] = task(Sums()).run(0, iter(["a row"]))
    assert name == ""
    ids = executor_tasks.TaskResult.unpacked(payload).note["ids"]
    assert ids == sorted(ids) == list(range(40))


def test_a_partition_without_rows_gives_nothing_and_is_mapped(disk: Path) -> None:
    assert pack(1, 0) == []
    results = Results(3)
    results.take(task(Sums()).run(1, iter([])))
    assert results.absent == [0, 2]
    assert (results.found[0].index, results.found[0].tensors["sum"].tolist()) == (1, [0.0, 0.0, 0.0])


def test_a_part_that_is_elsewhere_is_built_from_its_blocks(disk: Path) -> None:
    blocks = pack(0, 40)
    [before] = task(Sums()).run(0, iter([]))
    delete_files("key", iter([1, 2]))
    assert list(disk.iterdir()) == []
    [missing] = task(Sums()).run(0, iter([]))
    assert missing[2:] == ("missing", b"")
    rows = [SparkRow(**block) for block in blocks]
    [part, *_] = first_rows(rows)
    assert part[:2] == (0, 40)
    assert list(task(Sums()).build_some([1], 0, iter(rows))) == []
    assert list(task(Sums()).build_some([0], 0, iter(rows))) == [before]
    assert [each.name for each in disk.iterdir()] == ["sparkdl-parts-key"]
    results = Results(1)
    results.take([before])
    assert results.absent == []
    assert list(task(Sums()).build_some([0], 0, iter(rows))) == [before]  # now it is here
    [found] = task(Sums()).run(0, iter([]))
    assert found == before
    assert list(task(Sums()).build(iter([]))) == []


def test_rows_that_are_others_than_those_that_were_packed_are_refused(disk: Path) -> None:
    rows = [SparkRow(**block) for block in pack(0, 40)]
    MARKS[0] = MARKS[0].replace("40-", "41-")
    [missing] = task(Sums()).run(0, iter([]))
    assert missing[2:] == ("missing", b"")
    results = Results(1)
    results.take(task(Sums()).build(iter(rows)))
    with pytest.raises(InvalidInput, match="shard 0 in round 3: its rows have come back different"):
        raise_on_failure(results.found, 3)


def test_a_part_whose_input_was_cut_short_is_built_anew(disk: Path) -> None:
    """Of a task whose input fails pyspark's worker sees an end of the input, and has packed what came until then."""
    rows = [SparkRow(**block) for block in pack(0, 40)]
    [before] = task(Sums()).run(0, iter([]))
    whole = MARKS[0]
    store_of("key", 0).discard(0)
    short = [SparkRow(**block) for block in pack(0, 30)]
    MARKS[0] = whole
    [missing] = task(Sums()).run(0, iter([]))
    assert missing[2:] == ("missing", b"")
    with pytest.raises(EOFError, match="30 of 40 rows came before the input ended"):
        list(task(Sums()).build(iter(short)))
    assert list(task(Sums()).build(iter(rows))) == [before]


def test_values_that_cannot_be_used_are_told_and_leave_no_files(disk: Path) -> None:
    bad = pa.FixedSizeListArray.from_arrays(pa.array([1.0, float("nan"), 0.0] * 4), 3)
    batch = pa.RecordBatch.from_arrays([bad, pa.array(range(4)), pa.array([2] * 4, pa.int32())], names=["0", "1", "2"])
    [told] = PackTask(COLUMNS, ("x", "id"), "key").run(iter([batch, batch]))
    row = told.to_pylist()[0]
    assert row["part"] == 2
    assert "NaN" in json.loads(row["about"])["trouble"]
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("work", [Sums(large=1000), Kinds()])
def test_pieces_come_to_the_same_as_whole_tensors(disk: Path, monkeypatch: pytest.MonkeyPatch, work: MapReduce) -> None:
    for part, rows in enumerate(ROWS):
        pack(part, rows)
    whole, cut = Results(3), Results(3)
    whole.take(mapped(work))
    monkeypatch.setattr(tensor_chunks, "_PIECE", 1 << 8)
    rows = mapped(work, most=0, cut=True)
    cut.take(row for row in rows if row[1] < 0)
    reduced = pieces(rows)
    assert [count for count, *_ in reduced] == [3] * cut.pieces
    found, expected = assembled(reversed(reduced)), whole.reduced(work)
    assert list(found) == list(expected)
    assert cut.bytes == sum(tensor.nbytes for tensor in expected.values())
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert [found[name].dtype for name in found] == [tensor.dtype for tensor in expected.values()]
    assert cut.notes == whole.notes


def test_a_result_that_is_too_large_is_left_out_where_pieces_are_not_welcome(disk: Path) -> None:
    pack(0, 40)
    results = Results(1)
    results.take(task(Sums(), most=10).run(0, iter([])))
    assert results.large
    assert results.pieces == 0
    results = Results(1)
    results.take(task(Sums(), cut=True).run(0, iter([])))  # small ones are not cut even where they could be
    assert results.pieces == 0
    assert results.reduced(Sums())["rows"] == 40


def test_an_error_comes_as_a_result(disk: Path) -> None:
    for part, rows in enumerate(ROWS):
        pack(part, rows)
    results = Results(3)
    results.take(row for row in mapped(Raises(kind=InvalidInput), most=0, cut=True) if row[1] < 0)
    with pytest.raises(InvalidInput, match="shard 1 in round 2: no such thing"):
        raise_on_failure(results.found, 2)


class Widens(Sums):
    """Halves whose sums are floats."""

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """A half."""
        return {"half": torch.full((5,), 0.25, dtype=torch.float16)}, None

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """Floats."""
        return {name: tensor.float() + other[name].float() for name, tensor in one.items()}


def test_a_reduction_may_change_the_dtype(disk: Path) -> None:
    rows = [row for row in mapped_of(Widens()) if row[1] >= 0]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=["part", "piece", "name", "payload"])
    reduced = [tuple(row.values()) for each in ReduceTask(ship(Widens())).run([batch]) for row in each.to_pylist()]
    assert torch.equal(assembled(reduced)["half"], torch.full((5,), 0.5))


def mapped_of(work: MapReduce) -> list[TaskRow]:
    """Two parts' pieces."""
    pack(0, 40)
    pack(2, 25)
    return [row for part in (0, 2) for row in task(work, most=0, cut=True).run(part, iter([]))]


def test_pieces_of_a_part_that_was_absent_do_not_count_when_it_turns_up(disk: Path) -> None:
    """What was lost is mapped again, where its files may be: but then it has been built elsewhere already."""
    for part in (0, 2):
        pack(part, ROWS[part])
    rows = mapped(Sums(large=100), most=0, cut=True)
    found = list(tensor_chunks.pieces([2], rows))
    assert {row[0] for row in found} == {0, 1}
    assert found == [row for row in rows if row[1] >= 0 and row[0] != 2]
