"""Fingerprints: the same for the same rows, another one for any other."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data import fingerprint as module
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.fingerprint import Fingerprint, fingerprint, total
from sparkdl.data.shard import Shard
from sparkdl.data.spool import Spool

ROWS = 500
COLUMNS = Columns(
    (InputColumn("x"), InputColumn("small"), InputColumn("words", ragged="offsets")),
    InputColumn("y"),
    row_id=InputColumn("id", "int64"),
    floating="float64",
)


def table(order: np.ndarray | None = None, **changes: object) -> pa.Table:
    draw = np.random.default_rng(0)
    arrays = {
        "x": pa.array(draw.normal(size=(ROWS, 3)).tolist(), pa.list_(pa.float64())),
        "small": pa.array(draw.integers(0, 9, ROWS).astype(np.int8)),
        "words": pa.array([list(range(row % 5)) for row in range(ROWS)], pa.list_(pa.int64())),
        "y": pa.array(draw.normal(size=ROWS)),
        "id": pa.array(np.arange(ROWS)),
    } | changes
    found = pa.table(arrays)
    return found if order is None else found.take(order)


def part(rows: pa.Table, columns: Columns = COLUMNS) -> Shard:
    spool = Spool(columns)
    for batch in rows.to_batches(max_chunksize=77):
        spool.append(batch)
    return spool.part(0, (spool.rows,), spool.layout())


@pytest.fixture(scope="module")
def expected():
    return fingerprint(part(table()))


def test_rows_in_another_order_of_arrival_are_the_same(expected):
    shuffled = np.random.default_rng(1).permutation(ROWS)
    assert fingerprint(part(table(shuffled))) == expected


def test_rows_in_another_order_of_ids_are_the_same_rows_in_another_order(expected):
    found = fingerprint(part(table(id=pa.array(np.arange(ROWS)[::-1]))))
    assert (found.rows, found.content) == (expected.rows, expected.content)
    assert found.order != expected.order


def test_how_rows_are_chunked_does_not_matter(expected, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 100)
    assert fingerprint(part(table())) == expected


def test_parts_add_up_to_the_data_however_they_are_dealt_out(expected):
    whole = table()
    for cuts in ([250], [0, 100, 499]):
        edges = [0, *cuts, ROWS]
        parts = [fingerprint(part(whole.slice(a, b - a))) for a, b in itertools.pairwise(edges)]
        assert total(parts) == (ROWS, expected.content)


CHANGED = {
    "a bit of a double": ("y", lambda values: np.where(np.arange(ROWS) == 7, np.nextafter(values, 9), values)),
    "two signs": ("y", lambda values: np.where(np.arange(ROWS) < 2, -values, values)),
    "a small number": ("small", lambda values: np.where(np.arange(ROWS) == 7, values + 1, values).astype(np.int8)),
}


@pytest.mark.parametrize(("name", "change"), CHANGED.values(), ids=CHANGED)
def test_another_value_is_found(expected, name, change):
    values = change(table()[name].to_numpy())
    assert fingerprint(part(table(**{name: pa.array(values)}))).content != expected.content


def test_signs_of_two_values_of_a_row_do_not_cancel():
    columns = Columns((InputColumn("x"),), floating="float64")

    def of(*row: float) -> int:
        return fingerprint(part(pa.table({"x": pa.array([list(row)], pa.list_(pa.float64()))}), columns)).content

    assert len({of(1.0, 2.0), of(-1.0, -2.0), of(2.0, 1.0), of(-2.0, -1.0), of(-1.0, 2.0)}) == 5


def test_values_that_move_between_rows_or_columns_are_found(expected):
    words = table()["words"].to_pylist()
    words[3], words[4] = [0, 1], [2, 0, 1, 2, 3]  # one after the other they are the same values
    assert fingerprint(part(table(words=pa.array(words, pa.list_(pa.int64()))))).content != expected.content
    columns = Columns((InputColumn("a"), InputColumn("b")))
    one, other = ({"a": pa.array([1.0]), "b": pa.array([2.0])}, {"a": pa.array([2.0]), "b": pa.array([1.0])})
    assert fingerprint(part(pa.table(one), columns)) != fingerprint(part(pa.table(other), columns))


def test_a_part_without_rows():
    found = fingerprint(part(table().slice(0, 0)))
    assert found == Fingerprint(0, 0, 0)
    assert Fingerprint.parse(str(found)) == found


def test_it_reads_back(expected):
    assert Fingerprint.parse(str(expected)) == expected


def test_nan_is_a_value_like_any_other():
    columns = Columns((InputColumn("x"),))
    tensors = {"x": torch.tensor([float("nan"), 1.0])}
    assert fingerprint(Shard(0, 1, 2, (2,), columns, tensors)) == fingerprint(Shard(0, 1, 2, (2,), columns, tensors))
