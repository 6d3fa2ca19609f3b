"""Fingerprints: equal for equal rows, different for any others."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data import shard as module
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.fingerprint import Fingerprint, fingerprint, total
from sparkdl.data.shard import Shard
from tests.data.spooled import shards_of, shuffled

ROWS = 500
COLUMNS = Columns(
    (InputColumn("x"), InputColumn("small"), InputColumn("words", ragged="offsets")),
    InputColumn("y"),
    row_id=InputColumn("id", "int64"),
    floating="float64",
)


def table(**changes):
    draw = np.random.default_rng(0)
    arrays = {
        "x": pa.array(draw.normal(size=(ROWS, 3)).tolist(), pa.list_(pa.float64())),
        "small": pa.array(draw.integers(0, 9, ROWS).astype(np.int8)),
        "words": pa.array([list(range(row % 5)) for row in range(ROWS)], pa.list_(pa.int64())),
        "y": pa.array(draw.normal(size=ROWS)),
        "id": pa.array(np.arange(ROWS)),
    }
    return pa.table(arrays | changes)


def of(rows, columns=COLUMNS):
    (shard,) = shards_of([rows], columns, batch_rows=77)
    return fingerprint(shard)


@pytest.fixture(scope="module")
def expected():
    return of(table())


def test_order_of_ids_alone_changes_the_order(expected, monkeypatch):
    assert of(shuffled(table(), 1)) == expected
    monkeypatch.setattr(module, "_CHUNK", 100)
    assert of(table()) == expected
    actual = of(table(id=pa.array(np.arange(ROWS)[::-1])))
    assert (actual.rows, actual.content) == (expected.rows, expected.content)
    assert actual.order != expected.order


def test_shards_add_up_to_the_data_set(expected):
    for cuts in ([250], [0, 100, 499]):
        edges = itertools.pairwise([0, *cuts, ROWS])
        assert total([of(table().slice(a, b - a)) for a, b in edges]) == (ROWS, expected.content)


WORDS = table()["words"].to_pylist()
CHANGED = {
    "a bit of a double": ("y", lambda values: np.where(np.arange(ROWS) == 7, np.nextafter(values, 9), values)),
    "two signs": ("y", lambda values: np.where(np.arange(ROWS) < 2, -values, values)),
    "a small number": ("small", lambda values: np.where(np.arange(ROWS) == 7, values + 1, values).astype(np.int8)),
    # One after the other, rows 3 and 4 have the same values as before.
    "ends of lists": ("words", lambda _: pa.array([*WORDS[:3], [0, 1], [2, 0, 1, 2, 3], *WORDS[5:]])),
}


@pytest.mark.parametrize(("name", "change"), CHANGED.values(), ids=CHANGED)
def test_changed_values_are_detected(expected, name, change):
    assert of(table(**{name: pa.array(change(table()[name].to_numpy()))})).content != expected.content


def test_values_that_move_or_change_signs_together_are_detected():
    columns = Columns((InputColumn("x"),), floating="float64")
    rows = [[1.0, 2.0], [-1.0, -2.0], [2.0, 1.0], [-2.0, -1.0], [-1.0, 2.0]]
    assert len({of(pa.table({"x": pa.array([row])}), columns).content for row in rows}) == 5
    columns = Columns((InputColumn("a"), InputColumn("b")))
    assert of(pa.table({"a": [1.0], "b": [2.0]}), columns) != of(pa.table({"a": [2.0], "b": [1.0]}), columns)


def test_fingerprint_round_trips_as_text_and_nan_equals_nan(expected):
    empty, nan = of(table().slice(0, 0)), {"x": torch.tensor([float("nan"), 1.0])}
    assert empty == Fingerprint(0, 0, 0)
    assert [Fingerprint.parse(str(value)) for value in (empty, expected)] == [empty, expected]
    first, second = (fingerprint(Shard(0, 1, 2, (2,), Columns((InputColumn("x"),)), nan)) for _ in range(2))
    assert first == second
