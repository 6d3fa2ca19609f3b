"""The spool: unlinked files whose rows come back in the order of their ids."""

import gc
import math
import os
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data import spool as module
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from tests.data.spooled import largest_file, spooled
from tests.listening import descriptors

X = Columns((InputColumn("x"),))
COLUMNS = Columns(
    (InputColumn("x"), InputColumn("image"), InputColumn("words", "int64", ragged="offsets")),
    target=InputColumn("y"),
    row_id=InputColumn("id", "int64"),
)
LAYOUT = {"x": ("float32", ()), "words": ("int64", ()), "y": ("int32", ()), "id": ("int64", ())}
LAYOUT |= {"image": ("uint8", (2, 3))}


def table(rows):
    """Rows whose ids are in order, with gaps between them."""
    draw = np.random.default_rng(0)
    image = pa.FixedSizeListArray.from_arrays(pa.array(draw.integers(0, 256, rows * 6).astype(np.uint8)), 3)
    return pa.table(
        {
            "id": pa.array(np.cumsum(draw.integers(1, 9, rows)), pa.int64()),
            "x": pa.array(draw.standard_normal(rows).astype(np.float32)),
            "image": pa.FixedSizeListArray.from_arrays(image, 2),
            "words": pa.array([[*range(-1, row % 4)] for row in range(rows)], pa.list_(pa.int32())),
            "y": pa.array(draw.integers(-9, 9, rows).astype(np.int32)),
        }
    )


def open_files(folder):
    """This process's descriptors of files in a folder, unlinked ones included."""
    return [target for target in descriptors() if target.startswith(f"{folder}/")]


@pytest.mark.parametrize("rows", [0, 1, 2, 50])
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_rows_come_back_as_they_were(rows, batch_rows):
    source = table(rows)
    batches = source.to_batches(max_chunksize=batch_rows) or [pa.RecordBatch.from_pylist([], source.schema)]
    batches[-1] = batches[-1].select(["y", "words", "image", "x", "id"])  # columns may be in any order
    spool = spooled(COLUMNS, batches)
    assert spool.rows == rows
    assert spool.layout() == (LAYOUT if rows else {})
    tensors = spool.seal(LAYOUT)
    words = tensors.pop("words")
    assert words.padding is None
    assert [row.tolist() for row in words.values.split(words.lengths.tolist())][:rows] == source["words"].to_pylist()
    for name, tensor in tensors.items():
        dtype, shape = LAYOUT[name]
        assert (str(tensor.dtype), tensor.shape) == (f"torch.{dtype}", (rows, *shape))
        assert tensor.tolist() == source[name].to_pylist()


def test_layout_of_shards_without_rows_or_values():
    tensors = Spool(COLUMNS).seal({"image": ("uint8", (2, 3)), "x": ("float64", ()), "y": ("bool", (4,))})
    assert len(tensors.pop("words")) == 0
    expected = {"image": (torch.uint8, (0, 2, 3)), "x": (torch.float64, (0,)), "y": (torch.bool, (0, 4))}
    assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == expected | {"id": (torch.float32, (0,))}
    batch = pa.record_batch({"x": pa.array([[], [], []], pa.list_(pa.float32()))})
    assert spooled(X, [batch]).seal({})["x"].shape == (3, 0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_index_sorts_ids_and_is_narrow(chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max  # their differences wrap around
    few = ([], [0], [0, 1, 2], [high, low], [low, high], [0, low, high], [high, 1, low, -1], [2**62, -(2**62) - 1])
    draw = np.random.default_rng(0)
    for ids in (*few, *(draw.permutation(rows).tolist() for rows in (1, 2, 3, 13, 40) for _ in range(4))):
        for dtype in (torch.int64, torch.uint8) if set(ids) <= set(range(256)) else (torch.int64,):
            order = Spool(COLUMNS).order(torch.tensor(ids, dtype=dtype))
            if ids == sorted(ids):
                assert order is None
            else:
                assert order.dtype == torch.int32
                assert [ids[place] for place in order] == sorted(ids)


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("ids", [[1, 1], [1, 2, 2, 3], [3, 2, 1, 3], [7, 1, 2, 3, 4, 5, 6, 7], [0] * 9], ids=str)
def test_duplicate_id_raises(ids, chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    twice = next(value for value in sorted(ids) if ids.count(value) > 1)
    with pytest.raises(InvalidInput, match=f"the row id column 'id' holds {twice} more than once in one shard"):
        Spool(COLUMNS).order(torch.tensor(ids))


def test_shapes_and_dtypes_that_differ_between_batches_raise():
    deep, long = pa.array([[[1.0]]]), pa.array([1], pa.int64())
    for first, second, kind in [
        (pa.array([[1.0]]), [[1.0, 2.0]], "float32"),
        (deep, [[[1.0], [1.0]]], "float32"),
        (long, pa.array([1], pa.int32()), "int64"),
    ]:
        spool = spooled(X, [pa.record_batch({"x": first})])
        with pytest.raises(InvalidInput, match=rf"column 'x' has rows of {kind} and shape .*; expected one dtype and"):
            spool.append(pa.record_batch({"x": second if kind == "int64" else pa.array(second, first.type)}))


def test_invalid_values_are_counted_over_the_whole_shard():
    nan, inf = math.nan, math.inf
    source = pa.table({"x": [[1.0, nan], [None, inf], None, [0.0, 0.0]] * 5, "y": [0.0, 0.5, 2.0**70, None] * 5})
    spool = Spool(Columns((InputColumn("x"),), InputColumn("y", "int64")), shard=3)
    for batch in source.to_batches(max_chunksize=3):
        spool.append(batch)
    with pytest.raises(InvalidInput) as caught:
        spool.seal({})
    first, second = caught.value.message.splitlines()
    assert first.startswith("shard 3: column 'x' has 10 nulls, 5 NaN and 5 infinite values in 20 rows; expected none")
    assert second.startswith("column 'y' has 5 nulls and 10 values that are not whole numbers within int64's range")
    assert spool.rows == 20


def test_many_invalid_columns_and_other_errors_fit_a_screen():
    names = [f"x{index}" for index in range(500)]
    spool = spooled(Columns(tuple(map(InputColumn, names))), [pa.record_batch({name: [1.0, None] for name in names})])
    with pytest.raises(InvalidInput, match="and 490 more columns") as caught:
        spool.seal({})
    assert len(caught.value.message.splitlines()) == 11
    spool = Spool(X, shard=7)
    with pytest.raises(InvalidInput, match=r"shard 7: column 'x' has arrays of several lengths.*ragged=\"offsets\""):
        spool.append(pa.record_batch({"x": [[1.0], [1.0, 2.0]]}))


def test_files_are_unlinked_and_closed_with_the_last_reference(tmp_path):
    spool = spooled(COLUMNS, table(30).to_batches(), tmp_path)
    assert len(open_files(tmp_path)) == 6  # the ragged column has two
    tensors = spool.seal(spool.layout())
    assert os.listdir(tmp_path) == []
    abandoned = spooled(COLUMNS, table(30).to_batches(), tmp_path)
    assert len(open_files(tmp_path)) == 12
    del spool, tensors, abandoned
    gc.collect()
    assert open_files(tmp_path) == os.listdir(tmp_path) == []


def test_partial_writes_are_completed():
    """A write of more than 2 GiB is partial; here every write takes 7 bytes."""
    spool = Spool(X)
    file = spool._files["x"]
    raw, file._file = file._file, SimpleNamespace(write=lambda data: raw.write(data[:7]))
    spool.append(pa.record_batch({"x": pa.array(range(50), pa.int64())}))
    file._file = raw
    assert spool.seal({})["x"].tolist() == list(range(50))


def test_full_disk_raises_os_error(tmp_path):
    spool = Spool(X, directory=str(tmp_path))
    with largest_file(10_000), pytest.raises(OSError, match="File too large"):
        spool.append(pa.record_batch({"x": pa.array(range(5000), pa.int64())}))
