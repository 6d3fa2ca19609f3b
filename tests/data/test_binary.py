"""Binary columns: raw numbers of a given dtype and shape, and what a function makes of the bytes."""

from __future__ import annotations

import math
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.cluster.local import LocalCluster
from sparkdl.data.arrow import decode, row_dtype
from sparkdl.data.batch import DTYPES
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from tests.contracts import work

BINARY = (pa.binary(), pa.large_binary(), pa.binary(24))


def image(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(4, 6)


# ---- raw -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BINARY, ids=str)
@pytest.mark.parametrize(
    ("dtype", "shape"), [("uint8", (4, 6)), ("float32", (2, 3)), ("int64", (3,)), ("int16", (12, 1))]
)
def test_bytes_are_numbers(kind: pa.DataType, dtype: str, shape: tuple[int, ...]) -> None:
    given = np.random.default_rng(0).integers(0, 99, (9, *shape)).astype(dtype)
    array = pa.array([row.tobytes() for row in given], kind)
    column = InputColumn("x", dtype, shape)
    for sliced, expected in ((array, given), (array.slice(2), given[2:]), (array.slice(3, 4), given[3:7])):
        found = decode(sliced, column)
        assert found.dtype == dtype == row_dtype(kind, column)
        np.testing.assert_array_equal(found, expected)
    assert decode(array.slice(0, 0), column).shape == (0, *shape)


def test_bytes_are_not_copied() -> None:
    array = pa.array([bytes(range(6)), bytes(range(6, 12))])
    assert np.shares_memory(decode(array, InputColumn("x", "uint8", (6,))), np.frombuffer(array.buffers()[2], np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_little_endian(dtype: str) -> None:
    one = (1).to_bytes(torch.empty(0, dtype=DTYPES[dtype]).element_size(), "little")
    value = np.frombuffer(one, np.dtype(dtype).newbyteorder("<"))[0]
    assert decode(pa.array([one]), InputColumn("x", dtype, ()))[0] == value


def test_another_length_is_refused_with_both() -> None:
    array = pa.array([bytes(8), bytes(7), bytes(9)])
    message = (
        r"column 'x' has a value of 7 bytes, and 2 of 3 values are .*; expected 8 bytes, which int16 of shape \(2, 2\)"
    )
    with pytest.raises(InvalidInput, match=message):
        decode(array, InputColumn("x", "int16", (2, 2)))


def test_bad_numbers_and_nulls_in_bytes_are_counted() -> None:
    rows = [np.array([1.0, math.nan], "<f4").tobytes(), None, np.array([math.inf, math.nan], "<f4").tobytes()]
    spool = Spool(Columns((InputColumn("x", "float32", (2,)),)))
    spool.append(pa.record_batch({"x": pa.array(rows)}))
    with pytest.raises(InvalidInput, match="column 'x' has 1 nulls, 2 NaN and 1 infinite values in 3 rows"):
        spool.check()
    with pytest.raises(InvalidInput, match="1 values that are not 0 or 1"):
        decode(pa.array([b"\0\1\2"]), InputColumn("x", "bool", (3,)))


# ---- a function ------------------------------------------------------------------------------------------------------


def test_a_function_reads_the_bytes() -> None:
    given = np.random.default_rng(0).integers(0, 255, (5, 4, 6)).astype(np.uint8)
    array = pa.array([row.tobytes() for row in given])
    found = decode(array.slice(1), InputColumn("x", decode=image))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, given[1:])
    scaled = decode(array, InputColumn("x", "float32", (24,), decode=image))
    np.testing.assert_array_equal(scaled, given.reshape(5, 24).astype(np.float32))
    assert decode(array.slice(0, 0), InputColumn("x", decode=image)).shape == (0,)


def test_doubles_take_the_dtype_of_the_run() -> None:
    column = InputColumn("x", decode=lambda data: [len(data) / 2])
    assert decode(pa.array([b"abc"]), column).dtype == np.float32
    assert decode(pa.array([b"abc"]), column, floating="float64").dtype == np.float64


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda data: {}["missing"], r"decode of column 'x' raised KeyError: 'missing' \(for a value of 1 bytes\)"),
        (lambda data: "text", "decode of column 'x' returned <U4 of shape .*; expected an array of numbers"),
        (lambda data: np.zeros(data[0]), r"returned float64 of shape \(1,\) for one row and .* of shape \(2,\)"),
        (lambda data: [math.nan], "column 'x' has 2 NaN"),
        (lambda data: [1.5], "column 'x' has 2 values that are not whole numbers"),
    ],
    ids=["raises", "text", "shapes", "NaN", "fractions"],
)
def test_what_a_function_does_wrong(function: Any, message: str) -> None:
    spool = Spool(Columns((InputColumn("x", "int64" if "whole" in message else None, decode=function),)), part=4)
    with pytest.raises(InvalidInput, match=f"part 4: .*{message}"):
        spool.append(pa.record_batch({"x": pa.array([b"\1", b"\2"])}))


def test_an_endless_error_fits_a_screen() -> None:
    def fail(data: bytes) -> None:
        raise ValueError("no " * 100_000)

    with pytest.raises(InvalidInput) as caught:
        decode(pa.array([b""]), InputColumn("x", decode=fail))
    assert len(caught.value.message) < 1000


def test_nulls_do_not_reach_a_function() -> None:
    spool = Spool(Columns((InputColumn("x", decode=image),)))
    spool.append(pa.record_batch({"x": pa.array([None, bytes(24), None])}))
    with pytest.raises(InvalidInput, match="column 'x' has 2 nulls in 3 rows"):
        spool.check()


def test_a_closure_travels_to_processes() -> None:
    factor = 3
    column = InputColumn("x", decode=lambda data: factor * np.frombuffer(data, np.uint8))
    assert cloudpickle.loads(cloudpickle.dumps(column)).decode(b"\2").tolist() == [6]
    data = pa.table({"x": [bytes([row, row + 1]) for row in range(6)]})
    with LocalCluster(2) as cluster:
        found = cluster.gang(work.rows, data, Columns((column,)))
    arrays = np.concatenate([part["columns"]["x"] for part in found])
    assert arrays.tolist() == [[3 * row, 3 * row + 3] for row in range(6)]


# ---- descriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BINARY, ids=str)
def test_bytes_have_to_be_described(kind: pa.DataType) -> None:
    schema = pa.schema([("x", kind)])
    for column in (InputColumn("x", "uint8", (24,)), InputColumn("x", decode=image)):
        Columns((column,)).check(schema)
    for column in (
        InputColumn("x"),
        InputColumn("x", "uint8"),
        InputColumn("x", shape=(24,)),
        InputColumn("x", "uint8", ragged="padded"),
    ):
        with pytest.raises(
            InvalidInput, match=r"column 'x' has type .* Say what its bytes are, as InputColumn\(name, \"uint8\""
        ):
            Columns((column,)).check(schema)


def test_a_function_needs_bytes() -> None:
    with pytest.raises(InvalidInput, match="column 'x' has type int64; expected binary values for its decode function"):
        Columns((InputColumn("x", decode=image),)).check(pa.schema([("x", pa.int64())]))
