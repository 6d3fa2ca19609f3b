"""Arrays of several lengths: decoded, spooled and dealt out, always the same lists that ``to_pylist`` gives."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data.arrow import decode_ragged
from sparkdl.data.batch import Ragged
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from tests.data.spooled import cut, parts_of, shuffled

TOKENS = InputColumn("tokens", "int64", ragged="offsets")
COLUMNS = Columns((TOKENS, InputColumn("row")), InputColumn("row"), row_id=InputColumn("id", "int64"))


def table(rows: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    tokens = [draw.integers(0, 99, draw.integers(0, 6)).tolist() for _ in range(rows)]
    return pa.table(
        {
            "id": pa.array(np.arange(rows) * 2),
            "row": pa.array(np.arange(rows)),
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
        }
    )


def lists(found: Any) -> list[Any]:
    values, bounds = (found.values, found.bounds) if isinstance(found, Ragged) else found
    return [values[first:last].tolist() for first, last in itertools.pairwise(bounds.tolist())]


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int16()), pa.list_(pa.float64())], ids=str)
def test_lists_of_several_lengths(kind: pa.DataType) -> None:
    array = pa.array([[1, 2], [], [3], [4, 5, 6], []], kind)
    for sliced in (array, array.slice(1), array.slice(1, 2), array.slice(4), array.slice(0, 0)):
        values, bounds = decode_ragged(sliced, TOKENS)
        assert lists((values, bounds)) == sliced.to_pylist()
        assert (values.dtype, bounds.dtype) == (np.int64, np.int64)


def test_lists_of_one_length_are_ragged_too() -> None:
    array = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    assert lists(decode_ragged(array.slice(1), TOKENS)) == [[3, 4], [5, 6]]


def test_values_may_be_vectors() -> None:
    array = pa.array([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]])
    values, bounds = decode_ragged(array, InputColumn("x", ragged="padded"))
    assert values.dtype == np.float32
    assert lists((values, bounds)) == array.to_pylist()
    with pytest.raises(InvalidInput, match="column 'x' has arrays of several lengths, 1 and 2"):
        decode_ragged(pa.array([[[1.0], [1.0, 2.0]]]), InputColumn("x", ragged="padded"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [([[1.0], None], "1 nulls"), ([[1.0, None]], "1 nulls"), ([[0.5]], "1 values that are not whole numbers")],
)
def test_bad_values_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"column 'tokens' has {message}"):
        decode_ragged(pa.array(rows), TOKENS)


# ---- spooling and dealing out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_rows_come_back_as_they_were(batch_rows: int) -> None:
    given = table(40)
    spool = Spool(COLUMNS)
    for batch in given.to_batches(max_chunksize=batch_rows):
        spool.append(batch)
    assert spool.layout()["tokens"] == ("int64", ())
    found = spool.seal({})["tokens"]
    assert isinstance(found, Ragged)
    assert found.padding is None
    assert lists(found) == given["tokens"].to_pylist()


def test_parts_without_rows_or_without_values() -> None:
    empty = table(0)
    hollow = pa.table({"id": [9, 7], "row": [0, 1], "tokens": pa.array([[], []], pa.list_(pa.int32()))})
    for part in parts_of([table(5), empty, hollow, empty], COLUMNS):
        (batch,) = Batcher(part, Plan((5, 0, 2, 0), 10)).batches(0)
        tokens = batch.inputs[0]
        assert isinstance(tokens, Ragged)
        assert tokens.values.dtype == torch.int64
        assert len(tokens) == part.rows


@pytest.mark.parametrize("ragged", ["offsets", "padded"])
@pytest.mark.parametrize("sizes", [(64,), (50, 0, 13)], ids=str)
def test_what_belongs_to_a_row_stays_with_it(sizes: tuple[int, ...], ragged: Any) -> None:
    given = table(sum(sizes))
    columns = Columns((InputColumn("tokens", ragged=ragged), InputColumn("row")), row_id=InputColumn("id", "int64"))
    members = parts_of([shuffled(each, 3) for each in cut(given, sizes)], columns)
    seen = []
    for part in members:
        for batch in Batcher(part, Plan(sizes, 9, seed=1)).batches(0):
            tokens, rows = batch.inputs
            assert isinstance(tokens, Ragged)
            assert tokens.padding == (None if ragged == "offsets" else 0)
            assert lists(tokens) == [given["tokens"][row].as_py() for row in rows.tolist()]  # type: ignore[union-attr]
            assert tokens.values.dtype == torch.int64
            seen += rows.tolist()  # type: ignore[union-attr]
    assert sorted(seen) == list(range(sum(sizes)))


# ---- descriptions ----------------------------------------------------------------------------------------------------


def test_a_ragged_label_is_refused() -> None:
    for columns in (Columns((InputColumn("x"),), TOKENS), Columns((TOKENS,), InputColumn("tokens"))):
        with pytest.raises(InvalidInput, match="column 'tokens' is ragged; expected that of input columns only"):
            list(columns)


def test_numbers_are_not_ragged() -> None:
    with pytest.raises(InvalidInput, match="column 'tokens' has type int64; expected arrays, since it is ragged"):
        Columns((TOKENS,)).check(pa.schema([("tokens", pa.int64())]))
