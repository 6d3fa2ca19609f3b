"""Binary columns: raw numbers of a dtype and shape, and values that a function decodes."""

from __future__ import annotations

import math

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data.arrow import decode, row_dtype
from sparkdl.data.batch import DTYPES
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from tests.data.spooled import spooled

BINARY = (pa.binary(), pa.large_binary(), pa.binary(24))


def image(data):
    return np.frombuffer(data, np.uint8).reshape(4, 6)


@pytest.mark.parametrize("kind", BINARY, ids=str)
@pytest.mark.parametrize(
    ("dtype", "shape"), [("uint8", (4, 6)), ("float32", (2, 3)), ("int64", (3,)), ("int16", (12, 1))]
)
def test_bytes_are_numbers_of_the_dtype_and_shape(kind, dtype, shape):
    given = np.random.default_rng(0).integers(0, 99, (9, *shape)).astype(dtype)
    array = pa.array([row.tobytes() for row in given], kind)
    column = InputColumn("x", dtype, shape)
    for sliced, expected in ((array, given), (array.slice(2), given[2:]), (array.slice(3, 4), given[3:7])):
        found = decode(sliced, column)
        assert found.dtype == dtype == row_dtype(kind, column)
        np.testing.assert_array_equal(found, expected)
    assert decode(array.slice(0, 0), column).shape == (0, *shape)


def test_bytes_are_not_copied():
    array = pa.array([bytes(range(6)), bytes(range(6, 12))])
    assert np.shares_memory(decode(array, InputColumn("x", "uint8", (6,))), np.frombuffer(array.buffers()[2], np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_little_endian(dtype):
    one = (1).to_bytes(torch.empty(0, dtype=DTYPES[dtype]).element_size(), "little")
    value = np.frombuffer(one, np.dtype(dtype).newbyteorder("<"))[0]
    assert decode(pa.array([one]), InputColumn("x", dtype, ()))[0] == value


def test_invalid_bytes_raise():
    lengths = r"column 'x' has 2 of 3 values of a wrong length, such as 7 bytes; expected 8 bytes, .* shape \(2, 2\)"
    with pytest.raises(InvalidInput, match=lengths):
        decode(pa.array([bytes(8), bytes(7), bytes(9)]), InputColumn("x", "int16", (2, 2)))
    with pytest.raises(InvalidInput, match="1 values that are not 0 or 1"):
        decode(pa.array([b"\0\1\2"]), InputColumn("x", "bool", (3,)))


@pytest.mark.parametrize(
    ("column", "rows", "message"),
    [
        (
            InputColumn("x", "float32", (2,)),
            [np.array(row, "<f4").tobytes() if row else None for row in ([1, math.nan], None, [math.inf, math.nan])],
            "column 'x' has 1 nulls, 2 NaN and 1 infinite values in 3 rows",
        ),
        (InputColumn("x", decode=image), [None, bytes(24), None], "column 'x' has 2 nulls in 3 rows"),
    ],
    ids=["raw", "decoded"],
)
def test_invalid_values_and_nulls_are_counted(column, rows, message):
    spool = spooled(Columns((column,)), [pa.record_batch({"x": pa.array(rows)})])
    with pytest.raises(InvalidInput, match=message):
        spool.check()


def test_function_decodes_bytes():
    given = np.random.default_rng(0).integers(0, 255, (5, 4, 6)).astype(np.uint8)
    array = pa.array([row.tobytes() for row in given])
    found = decode(array.slice(1), InputColumn("x", decode=image))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, given[1:])
    scaled = decode(array, InputColumn("x", "float32", (24,), decode=image))
    np.testing.assert_array_equal(scaled, given.reshape(5, 24).astype(np.float32))
    assert decode(array.slice(0, 0), InputColumn("x", decode=image)).shape == (0,)
    halves = InputColumn("x", decode=lambda data: [len(data) / 2])
    assert [decode(array, halves, floating=name).dtype for name in ("float32", "float64")] == ["float32", "float64"]


def fail(data):
    raise ValueError("no " * 100_000)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda data: {}["missing"], r"decode of column 'x' raised KeyError: 'missing' \(for a value of 1 bytes\)"),
        (fail, "decode of column 'x' raised ValueError: no no "),
        (lambda data: "text", "decode of column 'x' returned <U4 of shape .*; expected an array of numbers"),
        (lambda data: np.zeros(data[0]), r"returned float64 of shape \(1,\) for one row and .* of shape \(2,\)"),
        (lambda data: [math.nan], "column 'x' has 2 NaN"),
        (lambda data: [1.5], "column 'x' has 2 values that are not whole numbers"),
    ],
    ids=["raises", "long", "text", "shapes", "NaN", "fractions"],
)
def test_faulty_function_raises(function, message):
    spool = Spool(Columns((InputColumn("x", "int64" if "whole" in message else None, decode=function),)), part=4)
    with pytest.raises(InvalidInput, match=f"shard 4: .*{message}") as caught:
        spool.append(pa.record_batch({"x": pa.array([b"\1", b"\2"])}))
    assert len(caught.value.message) < 1000


def test_closure_is_pickled_with_its_column():
    factor = 3
    column = InputColumn("x", decode=lambda data: factor * np.frombuffer(data, np.uint8))
    assert cloudpickle.loads(cloudpickle.dumps(column)).decode(b"\2").tolist() == [6]
