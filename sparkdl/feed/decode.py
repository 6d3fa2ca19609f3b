"""Arrow columns to row-major arrays, a whole column at a time.

Nested lists of a fixed length are never walked row by row: their values already lie in row-major order, so one
look at the offsets of each level is enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import Column, element_type, is_list


def decode(array: pa.Array, column: Column, *, floating: str = "float32") -> npt.NDArray[Any]:
    """One Arrow array as a C-contiguous array ``[rows, *shape]``, without a copy where that is possible.

    Args:
        array: numbers, booleans, or lists of them nested to any depth.
        column: what the column is; its dtype and shape are checked where given.
        floating: the dtype of floating-point columns without a dtype of their own.

    Raises:
        InvalidInput: nulls, NaN or infinity, lists of several lengths, a shape other than the given one, or a
            number that its dtype cannot hold.
    """
    rows, shape = len(array), _shape(array, column)
    values = array
    while is_list(values.type):
        _refuse_nulls(values, column)
        values = values.flatten()
    _refuse_nulls(values, column)
    flat = np.asarray(values.to_numpy(zero_copy_only=False))
    numbers = _cast(flat, np.dtype(column.dtype or _default(flat.dtype, floating)), column)
    return np.ascontiguousarray(numbers).reshape(rows, *shape)


def row_dtype(kind: pa.DataType, column: Column, *, floating: str = "float32") -> np.dtype[Any]:
    """The dtype that ``decode`` gives for an Arrow type."""
    return np.dtype(column.dtype or _default(np.dtype(element_type(kind).to_pandas_dtype()), floating))


def _default(found: np.dtype[Any], floating: str) -> str:
    return floating if found.kind == "f" else found.name


def _shape(array: pa.Array, column: Column) -> tuple[int, ...]:
    """The shape of one row; every list of a level must have the same length."""
    shape: list[int] = []
    while is_list(array.type):
        shape.append(_length(array, column))
        array = array.flatten()
    if column.shape is None:
        return tuple(shape)
    if int(np.prod(shape)) != int(np.prod(column.shape)):
        raise InvalidInput(f"column {column.name!r} has rows of shape {tuple(shape)}; expected {column.shape}.")
    return column.shape


def _length(array: pa.Array, column: Column) -> int:
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


def _cast(flat: npt.NDArray[Any], wanted: np.dtype[Any], column: Column) -> npt.NDArray[Any]:
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        bad = int((~np.isfinite(flat)).sum())
        raise InvalidInput(f"column {column.name!r} has {bad} NaN or infinite values in one batch of rows.")
    if flat.dtype == wanted:
        return flat
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = flat.astype(wanted)
        if wanted.kind in "iub" and not np.array_equal(numbers.astype(flat.dtype), flat):
            kind = "whole numbers" if wanted.kind in "iu" else "0 or 1"
            raise InvalidInput(f"column {column.name!r} has values that are not {kind} within {wanted}'s range.")
        if wanted.kind == "f" and flat.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise InvalidInput(f"column {column.name!r} has values beyond {wanted}'s range.")
    return numbers
