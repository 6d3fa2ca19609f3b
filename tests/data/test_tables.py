"""Data without Spark: whatever form it has, each row goes to one member."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

from sparkdl.data import tables as module
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.tables import read, spill, split_rows
from sparkdl.errors import InvalidInput

SIZES = [1, 2, 3, 8]


def dealt(data: Any, size: int, columns: Any = None) -> list[list[Any]]:
    parts, _ = split_rows(data, columns, size)
    return [[row for batch in part for row in batch["x"].to_pylist()] for part in parts]


# ---- dealing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 1000])
def test_a_table_is_cut_into_runs_of_nearly_equal_length(rows: int, size: int) -> None:
    found = dealt(pa.table({"x": pa.array(range(rows), pa.int64())}), size)
    assert [row for part in found for row in part] == list(range(rows))
    assert {len(part) for part in found} <= {rows // size, -(-rows // size)}


@pytest.mark.parametrize("size", SIZES)
def test_a_dataset_gives_each_row_to_one_member(size: int, tmp_path: Path) -> None:
    for index, (first, last) in enumerate([(0, 10), (10, 11), (11, 1000)]):
        pq.write_table(pa.table({"x": range(first, last)}), tmp_path / f"{index}.parquet", row_group_size=100)
    found = dealt(ds.dataset(tmp_path), size)
    assert sorted(row for part in found for row in part) == list(range(1000))


def test_a_list_of_tables_is_taken_as_it_is() -> None:
    tables = [pa.table({"x": [1, 2, 3]}), pa.table({"x": pa.array([], pa.int64())}), pa.table({"x": [4]})]
    assert dealt(tables, 3) == [[1, 2, 3], [], [4]]


def test_long_tables_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 10)
    (part,), _ = split_rows({"x": np.arange(25)}, None, 1)
    assert [batch.num_rows for batch in part] == [10, 10, 5]


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 4), (6, 2, 3), (0,), (0, 3)], ids=str)
def test_a_dict_of_arrays_keeps_shapes_and_values(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for given in (array, np.asfortranarray(array), torch.from_numpy(array), array.tolist() if shape[0] else array):
        parts, columns = split_rows({"x": given}, None, 2)
        assert columns == Columns((InputColumn("x"),))
        found = [row for part in parts for batch in part for row in batch["x"].to_pylist()]
        assert found == array.tolist()


def test_without_data_members_have_no_batches() -> None:
    assert split_rows(None, None, 3) == ([[], [], []], None)


def test_columns_are_those_asked_for() -> None:
    data = {"a": np.zeros(3), "b": np.ones(3), "c": np.array(["not", "a", "number"])}
    given = Columns((InputColumn("b"),), target=InputColumn("a"))
    assert split_rows(data, given, 1)[1] is given
    assert split_rows(data, ["b", "a"], 1)[1] == Columns((InputColumn("b"), InputColumn("a")))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_columns_without_data_are_refused() -> None:
    with pytest.raises(InvalidInput, match="columns were given without data"):
        split_rows(None, ["x"], 1)


@pytest.mark.parametrize(
    ("data", "kind"),
    [("data.parquet", "str"), (7, "int"), (np.zeros(3), "ndarray"), ([{"x": 1}], "list"), ([1, 2], "list")],
    ids=str,
)
def test_other_data_is_refused(data: Any, kind: str) -> None:
    with pytest.raises(InvalidInput, match=f"data is of type {kind}; expected a pyarrow.Table, a pyarrow dataset, a "):
        split_rows(data, None, 1)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_table_for_each_member(count: int) -> None:
    with pytest.raises(InvalidInput, match=f"{count} tables were given for 2 members; expected one for each"):
        split_rows([pa.table({"x": [1]})] * count, None, 2)


@pytest.mark.parametrize(
    "data",
    [
        {"x": np.zeros(3), "y": np.zeros(4)},
        {"x": np.zeros((3, 2)), "y": np.zeros((2, 3))},
        {"x": np.zeros((3, 0))},
        {"x": np.zeros((3, 2, 0))},
        {"x": np.float32(1)},
        {"x": 5, "y": np.zeros(1)},
    ],
    ids=str,
)
def test_arrays_that_are_no_columns_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"the arrays have the shapes \{'x': .*; expected \[rows, ...\], all with"):
        split_rows(data, None, 1)


def test_a_column_must_be_in_every_table() -> None:
    tables = [pa.table({"x": [1], "y": [2]}), pa.table({"y": [3], "z": [4]})]
    with pytest.raises(InvalidInput, match="there is no column 'x'; the data has 'y', 'z'"):
        split_rows(tables, ["x"], 2)


def test_types_are_checked() -> None:
    with pytest.raises(InvalidInput, match="column 'x' has type string"):
        split_rows({"x": np.array(["a"])}, None, 1)


# ---- to another process and back -------------------------------------------------------------------------------------


def test_batches_go_to_a_file_and_back(tmp_path: Path) -> None:
    given = pa.table({"x": range(100), "y": [[float(row)] for row in range(100)]}).to_batches(max_chunksize=30)
    path = spill(iter(given), str(tmp_path / "part.arrow"))
    assert list(read(path)) == given
    assert os.listdir(tmp_path) == ["part.arrow"]


def test_no_batches_are_no_file(tmp_path: Path) -> None:
    assert spill([], str(tmp_path / "part.arrow")) is None
    assert os.listdir(tmp_path) == []
    assert list(read(None)) == []


def test_a_batch_without_rows_keeps_its_schema(tmp_path: Path) -> None:
    empty = pa.RecordBatch.from_pylist([], pa.schema([("x", pa.list_(pa.int8()))]))
    path = spill([empty], str(tmp_path / "part.arrow"))
    (found,) = read(path)
    assert found.schema == empty.schema
    assert found.num_rows == 0
