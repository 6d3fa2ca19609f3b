"""The columns of a run, data without Spark, and errors before anything is launched."""

import itertools
import os

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

from sparkdl.data import tables as module
from sparkdl.data.columns import Columns, InputColumn, element_type
from sparkdl.data.tables import read, spill, split_rows
from sparkdl.errors import InvalidInput

FLOAT = pa.float32()
NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), FLOAT, pa.float64(), pa.bool_()),
)
ADVICE = {
    pa.timestamp("us"): "seconds since 1970",
    pa.date32(): "days since a date",
    pa.string(): "Turn strings into numbers",
    pa.dictionary(pa.int32(), pa.string()): "Turn strings into numbers",
    pa.struct([("x", FLOAT)]): "Select its fields",
    pa.map_(pa.string(), pa.int32()): "Select its fields",
    pa.decimal128(10, 2): "Cast it to a number",
} | dict.fromkeys((pa.null(), pa.duration("s"), pa.list_view(FLOAT), pa.time64("us")), "")


def columns(*names):
    return Columns(tuple(map(InputColumn, names)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "float"}, r"InputColumn\('x'\).dtype is 'float'; expected one of bool, uint8"),
        ({"padding": 1}, "column 'x' has padding=1, which only ragged='padded' has"),
        ({"padding": 0.5, "ragged": "padded", "dtype": "int64"}, "padding=0.5; expected a value of int64"),
        ({"decode": len, "ragged": "padded"}, "has decode and ragged='padded'; expected one of them"),
    ],
    ids=str,
)
def test_contradictory_column_raises(fields, message):
    with pytest.raises(InvalidInput, match=message):
        InputColumn("x", **fields)


def test_names_become_inputs():
    assert {InputColumn("x", "uint8", [2, 3])} == {InputColumn("x", "uint8", (2, 3))}
    assert Columns.of(["b", "a"], ["a", "b", "c"]) == columns("b", "a")
    assert Columns.of(None, ["a", "b"]) == columns("a", "b")
    roles = Columns((InputColumn("a"),), target=InputColumn("b", "int64"))
    assert Columns.of(roles, ["z"]) is roles
    with pytest.raises(InvalidInput, match="columns is the string 'ab'; expected a list"):
        Columns.of("ab", ["a", "b", "ab"])


def test_columns_iterate_once_in_the_order_of_their_fields():
    x, y, a, b, weight, validation, row_id = map(InputColumn, ["x", "y", "a", "b", "w", "v", "id"])
    roles = Columns((x, y, x), (a, x, b), row_id=row_id, validation=validation, weight=weight)
    assert [column.name for column in roles] == ["x", "y", "a", "b", "w", "v", "id"]
    both = Columns((x, InputColumn("x", "int64", (), "padded", 7)))
    assert list(both) == [InputColumn("x", "int64", (), "padded", 7)]
    several = Columns((x,), (a, InputColumn("b", "float64")), floating="float32")
    assert several.targets == (InputColumn("a", "float32", ()), InputColumn("b", "float64", ()))
    assert (Columns((x,), y).targets, columns("x").targets) == ((y,), ())


TOKENS = InputColumn("x", "int64", ragged="offsets")


def test_contradictory_uses_of_a_column_raise():
    uses = [("dtype", "int64", "float32"), ("shape", (1,), ()), ("ragged", "padded", "offsets"), ("decode", len, abs)]
    for name, one, two in uses:
        with pytest.raises(InvalidInput, match=f"column 'x' is used twice, with {name}=.* and"):
            list(Columns((InputColumn("x", **{name: one}), InputColumn("x", **{name: two}))))
    for uses in (Columns((InputColumn("a"),), TOKENS), Columns((TOKENS,), InputColumn("x"))):
        with pytest.raises(InvalidInput, match="column 'x' is ragged; expected one length, since only input columns"):
            list(uses)


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_numbers_and_arrays_of_them_become_tensors(kind):
    for nested in (kind, pa.list_(kind), pa.large_list(kind), pa.list_(kind, 4), pa.list_(pa.list_(kind, 2), 3)):
        columns("x").check(pa.schema([("x", nested), ("unread", pa.string())]))
        assert element_type(nested) == kind


@pytest.mark.parametrize("kind", ADVICE, ids=str)
def test_other_types_raise_with_advice(kind):
    for nested in (kind, pa.list_(kind), pa.list_(pa.large_list(kind), 2)):
        message = rf"column 'x' has type .*; expected numbers, booleans, or arrays of them\. .*{ADVICE[kind]}"
        with pytest.raises(InvalidInput, match=message):
            columns("x").check(pa.schema([("x", nested)]))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(24)], ids=str)
def test_binary_columns_need_a_description(kind):
    schema = pa.schema([("x", kind)])
    for fields in ({"dtype": "uint8", "shape": (24,)}, {"decode": len}):
        Columns((InputColumn("x", **fields),)).check(schema)
    for fields in ({}, {"dtype": "uint8"}, {"shape": (24,)}, {"dtype": "uint8", "ragged": "padded"}):
        with pytest.raises(InvalidInput, match=r"Say what its bytes are, as InputColumn\(name, \"uint8\""):
            Columns((InputColumn("x", **fields),)).check(schema)
    for column, message in [(InputColumn("x", decode=len), "expected binary values"), (TOKENS, "expected arrays")]:
        with pytest.raises(InvalidInput, match=f"column 'x' has type int64; {message}"):
            Columns((column,)).check(pa.schema([("x", pa.int64())]))


def test_missing_columns_are_named():
    schema = pa.schema([("a", FLOAT), ("b", pa.list_(FLOAT))])
    with pytest.raises(InvalidInput, match="there is no column 'z'; the data has 'a', 'b'"):
        columns("a", "z").check(schema)
    with pytest.raises(InvalidInput, match="there are 2 columns 'x'"):
        columns("x").check(pa.schema([("x", FLOAT), ("x", FLOAT)]))
    with pytest.raises(InvalidInput, match="'c19' and 980 more") as caught:
        columns("z").check(pa.schema([(f"c{index}", pa.int8()) for index in range(1000)]))
    assert len(caught.value.message) < 500
    for role in ("target", "weight", "validation", "row_id", "client"):
        with pytest.raises(InvalidInput, match="there is no column 'z'"):
            Columns((InputColumn("a"),), **{role: InputColumn("z")}).check(schema)


# ---- data without Spark: in any form, each row goes to one worker ----------------------------------------------------


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
        ([ONE, pa.table({"y": [3], "z": [4]})], ["x"], "there is no column 'x'; .* 'y', 'z'"),
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
