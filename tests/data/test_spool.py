"""The spool: real files that nobody sees, rows that come back in the order of their ids whatever order they came in."""

from __future__ import annotations

import gc
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data import spool as module
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from tests.data.spooled import largest_file, shuffled, spooled

COLUMNS = Columns((InputColumn("x"), InputColumn("image")), target=InputColumn("y"), row_id=InputColumn("id", "int64"))


def table(rows: int, seed: int = 0) -> pa.Table:
    """Rows whose ids are in order, with gaps between them."""
    draw = np.random.default_rng(seed)
    image = pa.FixedSizeListArray.from_arrays(pa.array(draw.integers(0, 256, rows * 6).astype(np.uint8)), 3)
    return pa.table(
        {
            "id": pa.array(np.cumsum(draw.integers(1, 9, rows)), pa.int64()),
            "x": pa.array(draw.standard_normal(rows)),
            "image": pa.FixedSizeListArray.from_arrays(image, 2),
            "y": pa.array(draw.integers(-9, 9, rows).astype(np.int32)),
        }
    )


def reads(spool: Spool) -> dict[str, torch.Tensor]:
    """Every column in the order of the ids."""
    tensors = spool.seal(spool.layout())
    order = spool.order(tensors["id"])
    return {name: tensor if order is None else tensor[order] for name, tensor in tensors.items()}


def open_files(folder: Path) -> list[int]:
    """This process's descriptors of files, unlinked ones too, that lie in a folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if target.startswith(f"{folder}/"):
            found.append(int(name))
    return found


# ---- reading back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 2, 50])
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_rows_come_back_as_they_were(rows: int, batch_rows: int) -> None:
    given = table(rows)
    spool = spooled(
        COLUMNS, given.to_batches(max_chunksize=batch_rows) or [pa.RecordBatch.from_pylist([], given.schema)]
    )
    assert spool.rows == rows
    layout = {"x": ("float32", ()), "image": ("uint8", (2, 3)), "y": ("int32", ()), "id": ("int64", ())}
    assert spool.layout() == (layout if rows else {})
    tensors = spool.seal(layout)
    assert {name: (str(t.dtype), tuple(t.shape)) for name, t in tensors.items()} == {
        name: (f"torch.{dtype}", (rows, *shape)) for name, (dtype, shape) in layout.items()
    }
    assert tensors["y"].tolist() == given["y"].to_pylist()
    assert tensors["image"].tolist() == given["image"].to_pylist()
    assert torch.equal(tensors["x"], torch.tensor(given["x"].to_pylist(), dtype=torch.float32))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(pa.bool_(), torch.bool), (pa.int8(), torch.int8), (pa.int16(), torch.int16), (pa.uint16(), torch.int32)],
    ids=str,
)
def test_every_dtype_is_mapped(kind: pa.DataType, dtype: torch.dtype) -> None:
    given = pa.table({"x": pa.array([0, 1, 1, 0]).cast(kind)})
    tensor = spooled(Columns((InputColumn("x"),)), given.to_batches()).seal({})["x"]
    assert tensor.dtype == dtype
    assert tensor.tolist() == given["x"].to_pylist()


def test_batches_may_have_their_columns_in_any_place() -> None:
    given = table(6)
    spool = spooled(
        COLUMNS, [*given.slice(0, 3).to_batches(), *given.slice(3).select(["y", "image", "x", "id"]).to_batches()]
    )
    assert reads(spool)["y"].tolist() == given["y"].to_pylist()


def test_an_empty_part_takes_the_layout_of_the_others() -> None:
    tensors = Spool(COLUMNS).seal({"image": ("uint8", (2, 3)), "x": ("float64", ()), "y": ("bool", (4,))})
    assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == {
        "image": (torch.uint8, (0, 2, 3)),
        "x": (torch.float64, (0,)),
        "y": (torch.bool, (0, 4)),
        "id": (torch.float32, (0,)),  # of which no part saw a row
    }


def test_rows_without_elements_keep_their_count() -> None:
    given = pa.table({"x": pa.array([[], [], []], pa.list_(pa.float32()))})
    assert spooled(Columns((InputColumn("x"),)), given.to_batches()).seal({})["x"].shape == (3, 0)


# ---- the order of the ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_any_order_of_arrival_gives_the_same_bits(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    for rows in (1, 2, 3, 13, 40):
        expected = reads(spooled(COLUMNS, table(rows).to_batches()))
        for seed in range(4):
            found = reads(spooled(COLUMNS, shuffled(table(rows), seed).to_batches(max_chunksize=seed + 1)))
            assert all(torch.equal(found[name], expected[name]) for name in expected)
            assert found["id"].tolist() == sorted(found["id"].tolist())


def test_sorted_rows_need_no_index() -> None:
    for rows in (0, 1, 40):
        spool = spooled(COLUMNS, table(rows).to_batches())
        assert spool.order(torch.arange(rows)) is None


def test_the_index_is_narrow() -> None:
    order = Spool(COLUMNS).order(torch.tensor([5, 3, 9, 1]))
    assert order is not None
    assert order.dtype == torch.int32
    assert order.tolist() == [3, 1, 0, 2]


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("ids", [[1, 1], [1, 2, 2, 3], [3, 2, 1, 3], [7, 1, 2, 3, 4, 5, 6, 7], [0] * 9], ids=str)
def test_an_id_that_comes_twice_is_refused(ids: list[int], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    twice = next(value for value in sorted(ids) if ids.count(value) > 1)
    with pytest.raises(InvalidInput, match=f"the row id column 'id' holds {twice} more than once in one part"):
        Spool(COLUMNS).order(torch.tensor(ids))


def test_ids_from_one_end_of_int64_to_the_other() -> None:
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    for ids in ([high, low], [low, high], [0, low, high], [high, 1, low, -1], [high - 1, low, high]):
        order = Spool(COLUMNS).order(torch.tensor(ids))
        kept = ids if order is None else [ids[place] for place in order.tolist()]
        assert kept == sorted(ids)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [([[1.0]], [[1.0, 2.0]]), ([[1.0]], [[]]), ([[[1.0]]], [[[1.0], [1.0]]])],
    ids=str,
)
def test_shapes_that_differ_between_batches_are_refused(first: list[Any], second: list[Any]) -> None:
    spool = spooled(Columns((InputColumn("x"),)), pa.table({"x": first}).to_batches())
    for batch in pa.table({"x": pa.array(second, pa.array(first).type)}).to_batches():
        with pytest.raises(InvalidInput, match=r"column 'x' has rows of float32 and shape .*; expected one dtype and"):
            spool.append(batch)


def test_what_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(InvalidInput, match="column 'x' has arrays of several lengths"):
        spooled(Columns((InputColumn("x"),)), pa.table({"x": [[1.0], [1.0, 2.0]]}).to_batches())


def test_values_that_cannot_be_used_are_counted_over_the_whole_part() -> None:
    nan, inf = math.nan, math.inf
    given = pa.table({"x": [[1.0, nan], [None, inf], None, [0.0, 0.0]] * 5, "y": [0.0, 0.5, 2.0**70, None] * 5})
    columns = Columns((InputColumn("x"),), InputColumn("y", "int64"))
    spool = Spool(columns, part=3)
    for batch in given.to_batches(max_chunksize=3):
        spool.append(batch)
    for refuse in (spool.check, lambda: spool.seal({})):
        with pytest.raises(InvalidInput) as caught:
            refuse()
        first, second = caught.value.message.splitlines()
        assert first.startswith(
            "part 3: column 'x' has 10 nulls, 5 NaN and 5 infinite values in 20 rows; expected none. Drop or fill nulls"
        )
        assert second.startswith(
            "column 'y' has 5 nulls and 10 values that are not whole numbers within int64's range in 20 rows"
        )
    assert spool.rows == 20


def test_many_bad_columns_fit_a_screen() -> None:
    names = [f"x{index}" for index in range(500)]
    spool = Spool(Columns(tuple(map(InputColumn, names))))
    spool.append(pa.record_batch({name: pa.array([1.0, None]) for name in names}))
    with pytest.raises(InvalidInput, match="and 490 more columns") as caught:
        spool.check()
    assert len(caught.value.message.splitlines()) == 11


def test_another_error_says_which_part_it_is() -> None:
    spool = Spool(Columns((InputColumn("x"),)), part=7)
    with pytest.raises(InvalidInput, match=r"part 7: column 'x' has arrays of several lengths.*ragged=\"offsets\""):
        spool.append(pa.record_batch({"x": [[1.0], [1.0, 2.0]]}))


def test_a_batch_without_the_column_is_an_error() -> None:
    with pytest.raises(KeyError, match="x"):
        spooled(Columns((InputColumn("x"),)), pa.table({"y": [1.0]}).to_batches())


# ---- files -----------------------------------------------------------------------------------------------------------


def test_nothing_is_ever_seen_in_the_directory(tmp_path: Path) -> None:
    spool = Spool(COLUMNS, directory=str(tmp_path))
    assert len(open_files(tmp_path)) == 4
    for batch in shuffled(table(30), 1).to_batches():
        spool.append(batch)
    assert os.listdir(tmp_path) == []
    tensors = spool.seal(spool.layout())
    order = spool.order(tensors["id"])
    assert order is not None
    assert os.listdir(tmp_path) == []
    assert tensors["id"][order].tolist() == table(30)["id"].to_pylist()
    del spool, tensors, order
    gc.collect()
    assert open_files(tmp_path) == []


def test_an_abandoned_spool_leaves_nothing(tmp_path: Path) -> None:
    spool = spooled(COLUMNS, table(30).to_batches(), tmp_path)
    del spool
    gc.collect()
    assert open_files(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    given = pa.table({"x": pa.array(range(100), pa.int64())})
    tensor = spooled(Columns((InputColumn("x"),)), given.to_batches(), tmp_path).seal({})["x"]
    (mapped,) = open_files(tmp_path)
    before = os.pread(mapped, 1000, 0)
    tensor.mul_(0)
    assert tensor.tolist() == [0] * 100
    assert os.pread(mapped, 1000, 0) == before == np.arange(100).tobytes()


def test_what_one_write_leaves_is_written_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of more than 2 GiB takes only a part of it; here every one takes 7 bytes."""
    spool = Spool(Columns((InputColumn("x"),)))
    file = spool._files["x"]

    class Slow:
        def __init__(self, raw: Any) -> None:
            self.raw = raw

        def write(self, data: memoryview) -> int:
            return int(self.raw.write(data[:7]))

    raw, file._file = file._file, Slow(file._file)  # type: ignore[assignment]
    spool.append(pa.record_batch({"x": pa.array(range(50), pa.int64())}))
    file._file = raw
    assert spool.seal({})["x"].tolist() == list(range(50))


def test_a_directory_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    spool = Spool(Columns((InputColumn("x"),)), directory=str(tmp_path))
    with largest_file(10_000), pytest.raises(OSError, match="File too large"):
        spool.append(pa.record_batch({"x": pa.array(range(5000), pa.int64())}))


def test_a_directory_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Spool(COLUMNS, directory=str(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Spool(COLUMNS, directory=str(tmp_path / "file"))
