"""Arrow columns as tensors: every type, depth and slice against what ``to_pylist`` says the rows are."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data.arrow import decode, row_dtype
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput

X = InputColumn("x")

# Arrow type -> the dtype it becomes, and its least and greatest values.
KINDS: dict[pa.DataType, tuple[str, list[Any]]] = {
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
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def values(draw: random.Random, kind: pa.DataType, count: int) -> pa.Array:
    """The least and the greatest values of a type, at random."""
    drawn = draw.choices(KINDS[kind][1], k=count)
    return pa.array([np.float16(value) for value in drawn] if kind == pa.float16() else drawn, kind)


def nested(draw: random.Random, kind: pa.DataType, rows: int, shape: tuple[int, ...]) -> pa.Array:
    """Random rows of a shape, in a random mixture of list types."""
    array = values(draw, kind, rows * math.prod(shape))
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


def assert_same(found: np.ndarray, array: pa.Array, shape: tuple[int, ...]) -> None:
    assert found.shape == (len(array), *shape)
    assert found.flags.c_contiguous
    assert found.tolist() == array.to_pylist()


# ---- every type, every depth -----------------------------------------------------------------------------------------


@each_kind
def test_numbers(kind: pa.DataType) -> None:
    array = values(random.Random(0), kind, 9)
    found = decode(array, X)
    assert_same(found, array, ())
    assert found.dtype == KINDS[kind][0] == row_dtype(kind, X)


@each_kind
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3), (4, 1), (2, 3, 2), (1, 1, 1)], ids=str)
def test_nested_lists_are_row_major(kind: pa.DataType, shape: tuple[int, ...]) -> None:
    for seed in range(4):
        draw = random.Random(f"{kind} {shape} {seed}")
        array = nested(draw, kind, draw.randint(1, 7), shape)
        found = decode(array, X)
        assert_same(found, array, shape)
        assert found.dtype == KINDS[kind][0] == row_dtype(array.type, X)


@pytest.mark.parametrize("seed", range(40))
def test_slices_of_arrays_at_any_depth(seed: int) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 4) for _ in range(draw.randint(0, 3)))
    array = nested(draw, draw.choice(list(KINDS)), 20, shape)
    first = draw.randint(0, 19)
    sliced = array.slice(first, draw.randint(1, 20 - first))
    assert_same(decode(sliced, X), sliced, shape)
    again = sliced.slice(len(sliced) // 2)
    if len(again):
        assert_same(decode(again, X), again, shape)


@pytest.mark.parametrize("seed", range(10))
def test_chunk_boundaries_do_not_matter(seed: int) -> None:
    draw = random.Random(seed)
    array = nested(draw, pa.float32(), 50, (2, 3))
    cuts = sorted(draw.sample(range(1, 50), 4))
    chunks = [array.slice(first, last - first) for first, last in zip([0, *cuts], [*cuts, 50], strict=True)]
    assert np.array_equal(np.concatenate([decode(chunk, X) for chunk in chunks]), decode(array, X))


def test_a_filtered_array() -> None:
    array = pa.array([[float(row), float(-row)] for row in range(10)])
    kept = array.filter(pa.array([row % 3 == 1 for row in range(10)]))
    assert_same(decode(kept, X), kept, (2,))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (pa.float32(), ()),
        (pa.list_(pa.float32()), (0,)),
        (pa.list_(pa.float32(), 4), (4,)),
        (pa.list_(pa.list_(pa.int8(), 4), 2), (2, 4)),
    ],
    ids=str,
)
def test_no_rows(kind: pa.DataType, shape: tuple[int, ...]) -> None:
    assert decode(pa.array([], kind), X).shape == (0, *shape)


def test_rows_of_empty_lists() -> None:
    assert decode(pa.array([[], []], pa.list_(pa.float32())), X).shape == (2, 0)
    assert decode(pa.array([[[], []]], pa.list_(pa.list_(pa.float32()))), X).shape == (1, 2, 0)


# ---- without a copy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.float32(), pa.int64(), pa.uint8(), pa.int32()], ids=str)
def test_what_needs_no_cast_is_not_copied(kind: pa.DataType) -> None:
    values = pa.array(range(24), pa.int64()).cast(kind)
    memory = values.to_numpy()
    lists = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(values, 3), 2)
    for array, shape in ((values, (24,)), (lists, (4, 2, 3)), (lists.slice(1, 2), (2, 2, 3))):
        found = decode(array, X)
        assert found.shape == shape
        assert np.shares_memory(found, memory)


def test_lists_with_offsets_are_not_copied() -> None:
    array = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32()))
    assert np.shares_memory(decode(array.slice(1), X), array.values.to_numpy())


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floating_point_takes_the_dtype_of_the_run(kind: pa.DataType) -> None:
    array = pa.array([np.float16(1.5)]).cast(kind)
    for floating in ("float32", "float64"):
        assert decode(array, X, floating=floating).dtype == floating == row_dtype(kind, X, floating=floating)
    assert decode(array, InputColumn("x", "float64"), floating="float32").dtype == "float64"


def test_integral_doubles_are_labels() -> None:
    found = decode(pa.array([0.0, 3.0, -1.0, 2.0**40, -0.0]), InputColumn("x", "int64"))
    assert found.dtype == np.int64
    assert found.tolist() == [0, 3, -1, 2**40, 0]


@pytest.mark.parametrize("value", [0.5, -1.0000001, 1e300, 2.0**63, -(2.0**63) * 1.1])
def test_other_doubles_are_no_labels(value: float) -> None:
    with pytest.raises(InvalidInput, match="column 'x' has 1 values that are not whole numbers within int64's range"):
        decode(pa.array([1.0, value]), InputColumn("x", "int64"))


@pytest.mark.parametrize("wanted", ["int8", "int16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if pa.types.is_integer(kind)], ids=str)
def test_integers_beyond_the_range_of_the_dtype_are_refused(kind: pa.DataType, wanted: str) -> None:
    limits, column = np.iinfo(wanted), InputColumn("x", wanted)
    for value in {*KINDS[kind][1], limits.min, limits.max, limits.min - 1, limits.max + 1, 0, 127, 128, 255, 256}:
        if not KINDS[kind][1][0] <= value <= KINDS[kind][1][1]:
            continue
        array = pa.array([1, value], kind)
        if limits.min <= value <= limits.max:
            assert decode(array, column).tolist() == [1, value]
        else:
            with pytest.raises(InvalidInput, match=f"within {wanted}'s range"):
                decode(array, column)


def test_an_unsigned_number_beyond_int64_is_refused() -> None:
    with pytest.raises(InvalidInput, match="within int64's range"):
        decode(pa.array([2**63], pa.uint64()), X)


@pytest.mark.parametrize("values", [[0, 2], [0.0, 0.5], [-1]])
def test_only_0_and_1_are_booleans(values: list[float]) -> None:
    with pytest.raises(InvalidInput, match="column 'x' has 1 values that are not 0 or 1"):
        decode(pa.array(values), InputColumn("x", "bool"))


def test_0_and_1_are_booleans_and_back() -> None:
    for values in ([0, 1, 1], [0.0, 1.0, 1.0], [False, True, True]):
        assert decode(pa.array(values), InputColumn("x", "bool")).tolist() == [False, True, True]
        assert decode(pa.array(values), InputColumn("x", "int64")).tolist() == [0, 1, 1]


def test_a_double_beyond_float32_is_refused() -> None:
    with pytest.raises(InvalidInput, match="column 'x' has 1 values beyond float32's range"):
        decode(pa.array([1.0, 1e39]), X)
    assert decode(pa.array([1.0, 1e39]), X, floating="float64").tolist() == [1.0, 1e39]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    for array in (pa.array([1.0, bad, bad]), pa.array([[1.0], [bad], [bad]]), pa.array([bad, bad], pa.float32())):
        with pytest.raises(InvalidInput, match=f"column 'x' has 2 {'NaN' if bad != bad else 'infinite values'};"):
            decode(array, X)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([1.0, None], pa.float32()),
        ([True, None], pa.bool_()),
        ([[1.0, 2.0], None], pa.list_(pa.float32())),
        ([None, [1.0, 2.0]], pa.large_list(pa.float32())),
        ([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        ([[1.0, None]], pa.list_(pa.float32())),
        ([[[1.0], None]], pa.list_(pa.list_(pa.float32()))),
        ([[[1.0], [None]]], pa.list_(pa.large_list(pa.float32()))),
        ([[[1.0], None]], pa.list_(pa.list_(pa.float32(), 1), 2)),
        ([None], pa.list_(pa.list_(pa.float32()))),
    ],
    ids=str,
)
def test_a_null_is_refused_at_every_level(rows: list[Any], kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match=r"column 'x' has 1 nulls .* df.na.drop\(\)"):
        decode(pa.array(rows, kind), X)


def test_a_null_outside_a_slice_does_no_harm() -> None:
    for rows in ([None, 1.0, 2.0, None], [None, [1.0], [2.0], [None]], [[None], [1.0], [2.0], None]):
        kept = pa.array(rows).slice(1, 2)
        assert decode(kept, X).tolist() == kept.to_pylist()


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        ([[1], [1, 2]], "1 and 2"),
        ([[1], []], "1 and 0"),
        ([[[1], [1]], [[1]]], "2 and 1"),
        ([[[1], [1, 2]]], "1 and 2"),
        ([[[[1]], [[1, 2, 3]]]], "1 and 3"),
    ],
    ids=str,
)
def test_ragged_arrays_are_refused(rows: list[Any], lengths: str) -> None:
    with pytest.raises(InvalidInput, match=f"column 'x' has arrays of several lengths, {lengths} among them"):
        decode(pa.array(rows), X)


# ---- a given shape ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 6), (1, 3, 4), (12, 1)])
def test_a_given_shape_is_taken(shape: tuple[int, ...]) -> None:
    flat = np.arange(24, dtype=np.float32)
    array = pa.FixedSizeListArray.from_arrays(pa.array(flat), 12)
    assert np.array_equal(decode(array, InputColumn("x", shape=shape)), flat.reshape(2, *shape))


def test_a_given_shape_is_that_of_no_rows_too() -> None:
    for kind in (pa.list_(pa.float32()), pa.list_(pa.float32(), 12), pa.list_(pa.list_(pa.float32()))):
        assert decode(pa.array([], kind), InputColumn("x", shape=(3, 4))).shape == (0, 3, 4)


@pytest.mark.parametrize("shape", [(), (11,), (3, 5), (0,)])
def test_another_number_of_elements_is_refused(shape: tuple[int, ...]) -> None:
    array = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(24)), 12)
    with pytest.raises(InvalidInput, match=r"column 'x' has rows of shape \(12,\); expected \("):
        decode(array, InputColumn("x", shape=shape))
