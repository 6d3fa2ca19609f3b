"""Arrow columns as arrays: every type, depth and slice equals ``to_pylist``; binary columns decode."""

import itertools
import math
import random

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data.arrow import decode, decode_ragged, row_dtype
from sparkdl.data.batch import DTYPES
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from tests.data.spooled import spooled

X, LABEL, FLAG = InputColumn("x"), InputColumn("x", "int64"), InputColumn("x", "bool")
FLOATS = pa.list_(pa.float32())

# Arrow type -> the dtype it becomes, and its least and greatest values.
KINDS = {
    pa.bool_(): ("bool", [False, True]),
    pa.int8(): ("int8", [-(2**7), 2**7 - 1]),
    pa.int16(): ("int16", [-(2**15), 2**15 - 1]),
    pa.int32(): ("int32", [-(2**31), 2**31 - 1]),
    pa.int64(): ("int64", [-(2**63), 2**63 - 1]),
    pa.uint8(): ("uint8", [0, 2**8 - 1]),
    pa.uint16(): ("int32", [0, 2**16 - 1]),
    pa.uint32(): ("int64", [0, 2**32 - 1]),
    pa.uint64(): ("int64", [0, 2**63 - 1]),
    pa.float16(): ("float32", [-65504.0, 0.5]),
    pa.float32(): ("float32", [-(2.0**100), 0.25]),
    pa.float64(): ("float32", [-(2.0**100), 0.25]),
}


def nested(draw, kind, rows, shape):
    """Random rows of a shape, in a random mixture of list types."""
    drawn = draw.choices(KINDS[kind][1], k=rows * math.prod(shape))
    array = pa.array(list(map(np.float16, drawn)) if kind == pa.float16() else drawn, kind)
    for length in reversed(shape):
        offsets = range(0, len(array) + 1, length)
        array = draw.choice(
            (
                pa.FixedSizeListArray.from_arrays(array, length),
                pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array),
                pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), array),
            )
        )
    return array


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 3), (4, 1), (2, 3, 2), (1, 1, 1)], ids=str)
def test_every_type_depth_and_slice_is_row_major(kind, shape):
    for seed in range(4):
        draw = random.Random(f"{kind} {shape} {seed}")
        array = nested(draw, kind, draw.randint(1, 20), shape)
        first = draw.randrange(len(array))
        sliced = array.slice(first, draw.randint(1, len(array) - first))
        for rows in (array, sliced, sliced.slice(len(sliced) // 2)):
            actual = decode(rows, X)
            assert (actual.shape, actual.dtype) == ((len(rows), *shape), KINDS[kind][0])
            assert actual.flags.c_contiguous
            assert actual.tolist() == rows.to_pylist()
            assert row_dtype(array.type, X) == actual.dtype


def test_nulls_outside_a_slice_are_ignored():
    for rows in ([None, 1.0, 2.0, None], [None, [1.0], [2.0], [None]], [[None], [1.0], [2.0], None]):
        array = pa.array(rows).slice(1, 2)
        assert decode(array, X).tolist() == array.to_pylist()


@pytest.mark.parametrize(
    ("rows", "kind", "column", "shape"),
    [
        ([], pa.float32(), X, (0,)),
        ([], FLOATS, X, (0, 0)),
        ([], pa.list_(pa.float32(), 4), X, (0, 4)),
        ([], pa.list_(pa.list_(pa.int8(), 4), 2), X, (0, 2, 4)),
        *[([], kind, InputColumn("x", shape=(3, 4)), (0, 3, 4)) for kind in (FLOATS, pa.list_(FLOATS))],
        ([[], []], FLOATS, X, (2, 0)),
        ([[[], []]], pa.list_(FLOATS), X, (1, 2, 0)),
        *[
            ([[*range(12)]] * 2, FLOATS, InputColumn("x", shape=s), (2, *s))
            for s in [(12,), (3, 4), (1, 3, 4), (12, 1)]
        ],
    ],
    ids=str,
)
def test_shapes_without_rows_without_values_and_as_given(rows, kind, column, shape):
    array = pa.array(rows, kind)
    actual = decode(array, column)
    assert actual.shape == shape
    assert actual.reshape(-1).tolist() == np.ravel(array.to_pylist()).tolist()


@pytest.mark.parametrize("kind", [pa.float32(), pa.int64(), pa.uint8(), pa.int32()], ids=str)
def test_values_of_their_dtype_are_not_copied(kind):
    values = pa.array(range(24), pa.int64()).cast(kind)
    fixed = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(values, 3), 2)
    by_offsets = pa.ListArray.from_arrays(pa.array([0, 8, 16, 24], pa.int32()), values)
    for array, shape in ((values, (24,)), (fixed, (4, 2, 3)), (fixed.slice(1, 2), (2, 2, 3)), (by_offsets, (3, 8))):
        actual = decode(array, X)
        assert actual.shape == shape
        assert np.shares_memory(actual, values.to_numpy())


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if pa.types.is_integer(kind)], ids=str)
def test_integers_beyond_the_range_of_the_dtype_raise(kind, dtype):
    limits, (least, greatest) = np.iinfo(dtype), KINDS[kind][1]
    for value in {least, greatest, limits.min, limits.max, limits.min - 1, limits.max + 1, 0, 127, 128, 255, 256}:
        if least <= value <= greatest:
            array = pa.array([1, value], kind)
            if limits.min <= value <= limits.max:
                assert decode(array, InputColumn("x", dtype)).tolist() == [1, value]
            else:
                with pytest.raises(InvalidInput, match=f"within {dtype}'s range"):
                    decode(array, InputColumn("x", dtype))


def test_dtypes_of_the_column_and_of_the_run():
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        array = pa.array([np.float16(1.5)]).cast(kind)
        for floating in ("float32", "float64"):
            assert decode(array, X, floating=floating).dtype == floating == row_dtype(kind, X, floating=floating)
        assert decode(array, InputColumn("x", "float64"), floating="float32").dtype == "float64"
    labels = decode(pa.array([0.0, 3.0, -1.0, 2.0**40, -0.0]), LABEL)
    assert (labels.dtype, labels.tolist()) == ("int64", [0, 3, -1, 2**40, 0])
    for values in ([0, 1, 1], [0.0, 1.0, 1.0], [False, True, True]):
        assert decode(pa.array(values), FLAG).tolist() == [False, True, True]
        assert decode(pa.array(values), LABEL).tolist() == [0, 1, 1]
    assert decode(pa.array([1.0, 1e39]), X, floating="float64").tolist() == [1.0, 1e39]


NAN, INF = math.nan, math.inf
WHOLE = "1 values that are not whole numbers within int64's range"
NULLS = r"1 nulls .* df.na.drop\(\)"


@pytest.mark.parametrize(
    ("array", "column", "message"),
    [
        *[(pa.array([1.0, bad]), LABEL, WHOLE) for bad in (0.5, -1.0000001, 1e300, 2.0**63, -(2.0**63) * 1.1)],
        (pa.array([2**63], pa.uint64()), X, WHOLE),
        *[(pa.array(values), FLAG, "1 values that are not 0 or 1") for values in ([0, 2], [0.0, 0.5], [-1])],
        (pa.array([1.0, 1e39]), X, "1 values beyond float32's range"),
        *[(pa.array([1.0, bad, bad]), X, "2 infinite values;") for bad in (INF, -INF)],
        (pa.array([[1.0], [NAN], [NAN]]), X, "2 NaN;"),
        (pa.array([1.0, None]), X, NULLS),
        (pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), X, NULLS),
        (pa.array([[[1.0], None]], pa.list_(FLOATS)), X, NULLS),
        (pa.array([[[1], [1]], [[1]]]), X, "arrays of several lengths, 2 and 1"),
        *[
            (pa.array([[*range(12)]] * 2), InputColumn("x", shape=shape), r"rows of shape \(12,\); expected \(")
            for shape in [(), (11,), (3, 5), (0,)]
        ],
    ],
    ids=str,
)
def test_invalid_values_raise(array, column, message):
    with pytest.raises(InvalidInput, match=f"column 'x' has {message}"):
        decode(array, column)


TOKENS = InputColumn("x", "int64", ragged="offsets")
VECTORS = InputColumn("x", ragged="padded")
SHORT, LONG = [[1, 2], [], [3], [4, 5, 6], []], [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("rows", "kind", "column", "dtype"),
    [
        (SHORT, pa.list_(pa.int32()), TOKENS, "int64"),
        (SHORT, pa.large_list(pa.int16()), TOKENS, "int64"),
        (SHORT, pa.list_(pa.float64()), TOKENS, "int64"),
        (LONG, pa.list_(pa.int64(), 2), TOKENS, "int64"),
        ([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]], pa.list_(pa.list_(pa.float64())), VECTORS, "float32"),
    ],
    ids=str,
)
def test_ragged_lists_decode_to_values_and_bounds(rows, kind, column, dtype):
    array = pa.array(rows, kind)
    for sliced in (array, array.slice(1), array.slice(1, 2), array.slice(2), array.slice(0, 0)):
        values, bounds = decode_ragged(sliced, column)
        assert [values[first:last].tolist() for first, last in itertools.pairwise(bounds)] == sliced.to_pylist()
        assert (values.dtype, bounds.dtype) == (dtype, np.int64)


def test_invalid_ragged_values_raise():
    for rows, column, message in [
        ([[1.0], None], TOKENS, "1 nulls"),
        ([[1.0, None]], TOKENS, "1 nulls"),
        ([[0.5]], TOKENS, "1 values that are not whole numbers"),
        ([[[1.0], [1.0, 2.0]]], VECTORS, "arrays of several lengths, 1 and 2"),
    ]:
        with pytest.raises(InvalidInput, match=f"column 'x' has {message}"):
            decode_ragged(pa.array(rows), column)


def image(data):
    return np.frombuffer(data, np.uint8).reshape(4, 6)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(24)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "shape"), [("uint8", (4, 6)), ("float32", (2, 3)), ("int64", (3,)), ("int16", (12, 1))]
)
def test_bytes_are_numbers_of_the_dtype_and_shape(kind, dtype, shape):
    values = np.random.default_rng(0).integers(0, 99, (9, *shape)).astype(dtype)
    array = pa.array([row.tobytes() for row in values], kind)
    column = InputColumn("x", dtype, shape)
    for rows in (slice(9), slice(2, 9), slice(3, 7), slice(0)):
        actual = decode(array[rows], column)
        assert actual.dtype == dtype == row_dtype(kind, column)
        np.testing.assert_array_equal(actual, values[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_every_dtype_are_little_endian_and_not_copied(dtype):
    array = pa.array([np.array(1, np.dtype(dtype).newbyteorder("<")).tobytes()])
    actual = decode(array, InputColumn("x", dtype, ()))
    assert actual[0] == 1
    assert dtype == "bool" or np.shares_memory(actual, np.frombuffer(array.buffers()[2], np.uint8))


def test_invalid_bytes_raise():
    lengths = r"column 'x' has 2 of 3 values of a wrong length, such as 7 bytes; expected 8 bytes, .* shape \(2, 2\)"
    with pytest.raises(InvalidInput, match=lengths):
        decode(pa.array([bytes(8), bytes(7), bytes(9)]), InputColumn("x", "int16", (2, 2)))
    with pytest.raises(InvalidInput, match="1 values that are not 0 or 1"):
        decode(pa.array([b"\0\1\2"]), InputColumn("x", "bool", (3,)))
    floats = [np.array(row, "<f4").tobytes() if row else None for row in ([1, NAN], None, [INF, NAN])]
    for column, rows, message in [
        (InputColumn("x", "float32", (2,)), floats, "1 nulls, 2 NaN and 1 infinite values in 3 rows"),
        (InputColumn("x", decode=image), [None, bytes(24), None], "2 nulls in 3 rows"),
    ]:
        with pytest.raises(InvalidInput, match=f"column 'x' has {message}"):
            spooled(Columns((column,)), [pa.record_batch({"x": pa.array(rows)})]).seal({})


def test_function_decodes_bytes():
    images = np.random.default_rng(0).integers(0, 255, (5, 4, 6)).astype(np.uint8)
    array = pa.array([row.tobytes() for row in images])
    actual = decode(array.slice(1), InputColumn("x", decode=image))
    assert actual.dtype == np.uint8
    np.testing.assert_array_equal(actual, images[1:])
    scaled = decode(array, InputColumn("x", "float32", (24,), decode=image))
    np.testing.assert_array_equal(scaled, images.reshape(5, 24).astype(np.float32))
    assert decode(array.slice(0, 0), InputColumn("x", decode=image)).shape == (0,)
    halves = InputColumn("x", decode=lambda data: [len(data) / 2])
    assert [decode(array, halves, floating=name).dtype for name in ("float32", "float64")] == ["float32", "float64"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda data: {}["no " * 1000], r"column 'x' raised KeyError: 'no no no .* \(for a value of 1 bytes\)"),
        (lambda data: "text", "decode of column 'x' returned <U4 of shape .*; expected an array of numbers"),
        (lambda data: np.zeros(data[0]), r"returned float64 of shape \(1,\) for one row and .* of shape \(2,\)"),
        (lambda data: [math.nan], "column 'x' has 2 NaN"),
    ],
)
def test_faulty_function_raises(function, message):
    spool = Spool(Columns((InputColumn("x", decode=function),)), shard=4)
    with pytest.raises(InvalidInput, match=f"shard 4: .*{message}") as caught:
        spool.append(pa.record_batch({"x": pa.array([b"\1", b"\2"])}))
    assert len(caught.value.message) < 1000
