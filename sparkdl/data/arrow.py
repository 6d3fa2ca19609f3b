"""Arrow columns to row-major arrays, a whole column at a time.

Nested lists of a fixed length are never walked row by row: their values already lie in row-major order, so one
look at the offsets of each level is enough. Nor are binary values of a known dtype and shape; only those that a
function of the user's has to read are.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.data import binary, validation
from sparkdl.data.arrow_types import element_type, is_binary, is_list
from sparkdl.data.columns import Column
from sparkdl.errors import InvalidInput

Array = npt.NDArray[Any]

# Torch has types for wider unsigned numbers than 8 bits, but can hardly compute with them.
_SIGNED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


def decode(array: pa.Array, column: Column, *, floating: str = "float32", finite: bool = True) -> Array:
    """One Arrow array as a C-contiguous array ``[rows, *shape]``, without a copy where that is possible.

    Args:
        array: numbers, booleans, lists of them nested to any depth, or binary values.
        column: what the column is; its dtype and shape are checked where given. No rows have the given shape.
        floating: the dtype of floating-point columns without a dtype of their own.
        finite: whether NaN and infinity are refused; what cannot be whole numbers is in any case.

    Raises:
        InvalidInput: nulls, NaN or infinity, lists of several lengths, a shape other than the given one, or a
            number that its dtype cannot hold.
    """
    found: list[int] = []
    values = array
    _refuse_nulls(values, array, column)  # before lengths are compared: to its offsets, a null is a list of length 0
    while is_list(values.type):
        found.append(_length(values, column))
        values = values.flatten()
        _refuse_nulls(values, array, column)
    if is_binary(values.type):
        flat, shape = _from_bytes(values, column)
    else:
        flat, shape = np.asarray(values.to_numpy(zero_copy_only=False)), _shape(tuple(found), len(array), column)
    numbers = _cast(flat, wanted(flat.dtype, column, floating), column, finite)
    return np.ascontiguousarray(numbers).reshape(len(array), *shape)


def decode_ragged(
    array: pa.Array, column: Column, *, floating: str = "float32", finite: bool = True
) -> tuple[Array, Array]:
    """One Arrow array of lists of several lengths as values ``[total, *shape]`` and int64 bounds ``[rows + 1]``.

    Args:
        array: lists of what ``decode`` takes.
        column: what the column is; its shape is that of one value.
        floating: the dtype of floating-point columns without a dtype of their own.
        finite: see ``decode``.

    Raises:
        InvalidInput: see ``decode``; a null instead of a list, too.
    """
    _refuse_nulls(array, array, column)
    if pa.types.is_fixed_size_list(array.type):
        bounds = np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
    else:
        bounds = array.offsets.to_numpy().astype(np.int64)
        bounds -= bounds[0]
    return decode(array.flatten(), column, floating=floating, finite=finite), bounds


def row_dtype(kind: pa.DataType, column: Column, *, floating: str = "float32") -> np.dtype[Any] | None:
    """The dtype that ``decode`` gives for an Arrow type; None where only the values can tell."""
    if column.dtype is not None:
        return np.dtype(column.dtype)
    return None if is_binary(kind) else wanted(np.dtype(element_type(kind).to_pandas_dtype()), column, floating)


def wanted(found: np.dtype[Any], column: Column, floating: str) -> np.dtype[Any]:
    """The dtype that numbers of the dtype ``found`` become."""
    return np.dtype(column.dtype or (floating if found.kind == "f" else _SIGNED.get(found.name, found.name)))


def count_faults(array: pa.Array, column: Column, *, floating: str = "float32") -> validation.Counts:
    """What of an array ``decode`` refuses, counted; empty where it is no single values that are wrong with it."""
    nulls, values = array.null_count, array
    while is_list(values.type):
        values = values.flatten()  # leaves out what lies under a null
        nulls += values.null_count
    flat = np.empty(0)
    if not is_binary(values.type):
        flat = np.asarray(values.drop_null().to_numpy(zero_copy_only=False))
    elif column.decode is None:
        flat = binary.raw(values.drop_null(), column)
    return validation.count(flat, wanted(flat.dtype, column, floating), nulls=nulls)


def _from_bytes(values: pa.Array, column: Column) -> tuple[Array, tuple[int, ...]]:
    if column.decode is None:
        return binary.raw(values, column), cast("tuple[int, ...]", column.shape)
    rows = binary.decoded(values, column)
    return rows.reshape(-1), _shape(rows.shape[1:], len(rows), column)


def _shape(found: tuple[int, ...], rows: int, column: Column) -> tuple[int, ...]:
    if column.shape is None:
        return found
    if rows and math.prod(found) != math.prod(column.shape):
        raise InvalidInput(f"column {column.name!r} has rows of shape {found}; expected {column.shape}.")
    return column.shape


def _length(array: pa.Array, column: Column) -> int:
    """The length of every list of one level, which must be the same."""
    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    offsets = array.offsets.to_numpy()
    if len(offsets) < 2:
        return 0
    lengths = np.diff(offsets)
    if (lengths != lengths[0]).any():
        other = int(lengths[int(np.argmax(lengths != lengths[0]))])
        raise InvalidInput(
            f"column {column.name!r} has arrays of several lengths, {int(lengths[0])} and {other} among them; "
            f"expected one length for all rows. {validation.RAGGED}"
        )
    return int(lengths[0])


def _refuse_nulls(values: pa.Array, array: pa.Array, column: Column) -> None:
    if values.null_count:
        nulls = values.null_count
        raise InvalidInput(
            validation.message(column.name, validation.Counts({validation.NULLS: nulls}), rows=len(array))
        )


def _cast(flat: Array, dtype: np.dtype[Any], column: Column, finite: bool) -> Array:
    if finite and flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise _unfit(flat, dtype, column)
    if flat.dtype == dtype:
        return flat
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = flat.astype(dtype)
        if dtype.kind in "iub" and not _same(numbers, flat):
            raise _unfit(flat, dtype, column)
        if finite and dtype.kind == "f" and flat.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise _unfit(flat, dtype, column)
    return numbers


def _unfit(flat: Array, dtype: np.dtype[Any], column: Column) -> InvalidInput:
    return InvalidInput(validation.message(column.name, validation.count(flat, dtype)))


def _same(numbers: Array, flat: Array) -> bool:
    """Whether a cast changed no value: back again is not enough, since -1 and 255 are the same 8 bits."""
    return np.array_equal(numbers.astype(flat.dtype), flat) and np.array_equal(numbers < 0, flat < 0)
