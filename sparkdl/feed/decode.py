"""Arrow columns to row-major arrays, a whole column at a time.

Nested lists of a fixed length are never walked row by row: their values already lie in row-major order, so one
look at the offsets of each level is enough.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import Column, element_type, is_list

# Torch has types for wider unsigned numbers than 8 bits, but can hardly compute with them.
_SIGNED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


def decode(array: pa.Array, column: Column, *, floating: str = "float32", finite: bool = True) -> npt.NDArray[Any]:
    """One Arrow array as a C-contiguous array ``[rows, *shape]``, without a copy where that is possible.

    Args:
        array: numbers, booleans, or lists of them nested to any depth.
        column: what the column is; its dtype and shape are checked where given. No rows have the given shape.
        floating: the dtype of floating-point columns without a dtype of their own.
        finite: whether NaN and infinity are refused; what cannot be whole numbers is in any case.

    Raises:
        InvalidInput: nulls, NaN or infinity, lists of several lengths, a shape other than the given one, or a
            number that its dtype cannot hold.
    """
    found: list[int] = []
    values = array
    _refuse_nulls(values, column)  # before lengths are compared: to its offsets, a null is a list of length 0
    while is_list(values.type):
        found.append(_length(values, column))
        values = values.flatten()
        _refuse_nulls(values, column)
    shape = _shape(tuple(found), len(array), column)
    flat = np.asarray(values.to_numpy(zero_copy_only=False))
    numbers = _cast(flat, np.dtype(column.dtype or _default(flat.dtype, floating)), column, finite)
    return np.ascontiguousarray(numbers).reshape(len(array), *shape)


def row_dtype(kind: pa.DataType, column: Column, *, floating: str = "float32") -> np.dtype[Any]:
    """The dtype that ``decode`` gives for an Arrow type."""
    return np.dtype(column.dtype or _default(np.dtype(element_type(kind).to_pandas_dtype()), floating))


def _default(found: np.dtype[Any], floating: str) -> str:
    return floating if found.kind == "f" else _SIGNED.get(found.name, found.name)


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
            "expected one length for all rows."
        )
    return int(lengths[0])


def _refuse_nulls(array: pa.Array, column: Column) -> None:
    if array.null_count:
        raise InvalidInput(
            f"column {column.name!r} has {array.null_count} nulls in one batch of rows; expected none. Drop or fill "
            "them first, for example with df.na.drop() or pyspark.ml.feature.Imputer."
        )


def _cast(flat: npt.NDArray[Any], wanted: np.dtype[Any], column: Column, finite: bool) -> npt.NDArray[Any]:
    if finite and flat.dtype.kind == "f" and not np.isfinite(flat).all():
        bad = int((~np.isfinite(flat)).sum())
        raise InvalidInput(f"column {column.name!r} has {bad} NaN or infinite values in one batch of rows.")
    if flat.dtype == wanted:
        return flat
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = flat.astype(wanted)
        if wanted.kind in "iub" and not _same(numbers, flat):
            kind = "whole numbers" if wanted.kind in "iu" else "0 or 1"
            raise InvalidInput(f"column {column.name!r} has values that are not {kind} within {wanted}'s range.")
        if finite and wanted.kind == "f" and flat.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise InvalidInput(f"column {column.name!r} has values beyond {wanted}'s range.")
    return numbers


def _same(numbers: npt.NDArray[Any], flat: npt.NDArray[Any]) -> bool:
    """Whether a cast changed no value: back again is not enough, since -1 and 255 are the same 8 bits."""
    return np.array_equal(numbers.astype(flat.dtype), flat) and np.array_equal(numbers < 0, flat < 0)
