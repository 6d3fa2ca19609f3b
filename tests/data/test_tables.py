"""Data without Spark: in any form, each row goes to one worker."""

from __future__ import annotations

import itertools
import os

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


def split(data, size):
    shards, _ = split_rows(data, None, size)
    return [[row for batch in shard for row in batch["x"].to_pylist()] for shard in shards]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_each_row_goes_to_one_worker(size, tmp_path, monkeypatch):
    for rows in (0, 1, 2, 7, 1000):
        workers = split(pa.table({"x": pa.array(range(rows), pa.int64())}), size)
        assert [row for shard in workers for row in shard] == list(range(rows))
        assert {len(shard) for shard in workers} <= {rows // size, -(-rows // size)}
    for index, (first, last) in enumerate([(0, 10), (10, 11), (11, 1000)]):
        pq.write_table(pa.table({"x": range(first, last)}), tmp_path / f"{index}.parquet", row_group_size=100)
    assert sorted(itertools.chain(*split(ds.dataset(tmp_path), size))) == list(range(1000))
    tables = [pa.table({"x": pa.array(range(rank), pa.int64())}) for rank in range(size)]
    assert split(tables, size) == [list(range(rank)) for rank in range(size)]
    monkeypatch.setattr(module, "_ROWS", 10)
    (shard,), _ = split_rows({"x": np.arange(25)}, None, 1)
    assert [batch.num_rows for batch in shard] == [10, 10, 5]


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 4), (6, 2, 3), (0,), (0, 3)], ids=str)
def test_dict_of_arrays_keeps_shapes_and_values(shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for values in (array, np.asfortranarray(array), torch.from_numpy(array), array.tolist() if shape[0] else array):
        assert [*itertools.chain(*split({"x": values}, 2))] == array.tolist()


def test_columns_are_resolved():
    assert split_rows(None, None, 3) == ([[], [], []], None)
    data = {"a": np.zeros(3), "b": np.ones(3), "c": np.array(["not", "a", "number"])}
    columns = Columns((InputColumn("b"),), target=InputColumn("a"))
    assert split_rows(data, columns, 1)[1] is columns
    assert split_rows(data, ["b", "a"], 1)[1] == Columns((InputColumn("b"), InputColumn("a")))
    assert split_rows({"x": np.zeros(3)}, None, 1)[1] == Columns((InputColumn("x"),))


ONE = pa.table({"x": [1]})
SHAPES = r"the arrays have the shapes \{'x': .*; expected \[rows, ...\], all with"


@pytest.mark.parametrize(
    ("data", "columns", "message"),
    [
        (None, ["x"], "columns were given without data"),
        ("data.parquet", None, "data is of type str; expected a pyarrow.Table, a pyarrow dataset, a dict"),
        ([{"x": 1}], None, "data is of type list"),
        ([ONE] * 3, None, "3 tables were given for 2 workers; expected one for each"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, None, SHAPES),
        ({"x": np.zeros((3, 0))}, None, SHAPES),
        ({"x": np.float32(1)}, None, SHAPES),
        (
            [pa.table({"x": [1], "y": [2]}), pa.table({"y": [3], "z": [4]})],
            ["x"],
            "there is no column 'x'; .* 'y', 'z'",
        ),
        ({"x": np.array(["a"])}, None, "column 'x' has type string"),
        (ONE, [], "there are no input columns; expected at least one"),
    ],
    ids=str,
)
def test_invalid_data_raises(data, columns, message):
    with pytest.raises(InvalidInput, match=message):
        split_rows(data, columns, 2)


def test_batches_round_trip_through_a_file(tmp_path):
    path = str(tmp_path / "shard.arrow")
    assert spill([], path) is None
    assert os.listdir(tmp_path) == list(read(None)) == []
    many = pa.table({"x": range(100), "y": [[float(row)] for row in range(100)]}).to_batches(max_chunksize=30)
    none = pa.RecordBatch.from_pylist([], pa.schema([("x", pa.list_(pa.int8()))]))
    for batches in (many, [none]):
        assert list(read(spill(iter(batches), path))) == batches
        assert os.listdir(tmp_path) == ["shard.arrow"]
