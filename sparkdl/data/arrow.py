"""Conversion of Arrow columns to row-major arrays, a whole column at a time.

Lists of a fixed length already hold their values in row-major order, so one check of each level's offsets suffices.
Binary values of a known dtype and shape are converted in one piece as well. Only a user's decode function runs row by
row.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data import validation
from sparkdl.data.columns import InputColumn, element_type, is_binary, is_list
from sparkdl.data.validation import Array
from sparkdl.errors import InvalidInput

# Torch has few operations for unsigned integers of more than 8 bits.
_SIGNED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
_MOST = 500  # characters of a decode function's error to quote


def decode(array: pa.Array, column: InputColumn, *, floating: str = "float32", finite: bool = True) -> Array:
    """Convert an Arrow array to a C-contiguous array ``[rows, *shape]``, without a copy if possible.

    Args:
        array: numbers, booleans, lists of them nested to any depth, or binary values.
        column: its dtype and shape, if set, are checked. An empty array takes the column's shape.
        floating: dtype of floating-point columns without a dtype of their own.
        finite: whether NaN and infinity are invalid; for integer dtypes they always are.

    Raises:
        InvalidInput: nulls, NaN or infinity, lists of different lengths, a wrong shape, or a number out of its dtype's
            range.
    """
    lengths: list[int] = []
    values = array
    _check_nulls(values, array, column)  # first, since a null counts as a list of length 0
    while is_list(values.type):
        lengths.append(_length(values, column))
        values = values.flatten()
        _check_nulls(values, array, column)
    shape = tuple(lengths)
    if not is_binary(values.type):
        flat = np.asarray(values.to_numpy(zero_copy_only=False))
    elif column.decode is None:
        flat, shape = _raw(values, column), cast("tuple[int, ...]", column.shape)
    else:
        decoded = _decoded(values, column)
        flat, shape = decoded.reshape(-1), decoded.shape[1:]
    if column.shape is not None:
        if len(array) and math.prod(shape) != math.prod(column.shape):
            raise InvalidInput(f"column {column.name!r} has rows of shape {shape}; expected {column.shape}.")
        shape = column.shape
    numbers = _cast(flat, _target_dtype(flat.dtype, column, floating), column, finite)
    return np.ascontiguousarray(numbers).reshape(len(array), *shape)


def decode_ragged(
    array: pa.Array, column: InputColumn, *, floating: str = "float32", finite: bool = True
) -> tuple[Array, Array]:
    """Convert lists of any lengths as ``decode`` does: values ``[total, *shape]`` and int64 bounds ``[rows + 1]``."""
    _check_nulls(array, array, column)
    if pa.types.is_fixed_size_list(array.type):
        bounds = np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
    else:
        bounds = array.offsets.to_numpy().astype(np.int64)
        bounds -= bounds[0]
    return decode(array.flatten(), column, floating=floating, finite=finite), bounds


def row_dtype(kind: pa.DataType, column: InputColumn, *, floating: str = "float32") -> np.dtype[Any] | None:
    """The dtype that ``decode`` gives for an Arrow type; None if it depends on the values."""
    if column.dtype is not None:
        return np.dtype(column.dtype)
    return None if is_binary(kind) else _target_dtype(np.dtype(element_type(kind).to_pandas_dtype()), column, floating)


def count_faults(array: pa.Array, column: InputColumn, *, floating: str = "float32") -> validation.Counts:
    """Count the single values that ``decode`` rejects; empty if its error has another cause."""
    nulls, values = array.null_count, array
    while is_list(values.type):
        values = values.flatten()  # skips the values under a null
        nulls += values.null_count
    flat = np.empty(0)
    if not is_binary(values.type):
        flat = np.asarray(values.drop_null().to_numpy(zero_copy_only=False))
    elif column.decode is None:
        flat = _raw(values.drop_null(), column)
    return validation.count(flat, _target_dtype(flat.dtype, column, floating), nulls=nulls)


def _target_dtype(dtype: np.dtype[Any], column: InputColumn, floating: str) -> np.dtype[Any]:
    return np.dtype(column.dtype or (floating if dtype.kind == "f" else _SIGNED.get(dtype.name, dtype.name)))


def _length(array: pa.Array, column: InputColumn) -> int:
    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    lengths = np.diff(array.offsets.to_numpy())
    if not len(lengths):
        return 0
    differing = lengths[lengths != lengths[0]]
    if len(differing):
        raise InvalidInput(
            f"column {column.name!r} has arrays of several lengths, {lengths[0]} and {differing[0]} among them; "
            f"expected one length for all rows. {validation.RAGGED}"
        )
    return int(lengths[0])


def _check_nulls(values: pa.Array, array: pa.Array, column: InputColumn) -> None:
    if values.null_count:
        counts = validation.Counts({validation.NULLS: values.null_count})
        raise InvalidInput(validation.message(column.name, counts, rows=len(array)))


def _cast(flat: Array, dtype: np.dtype[Any], column: InputColumn, finite: bool) -> Array:
    floats = finite and flat.dtype.kind == "f"
    valid = not floats or bool(np.isfinite(flat).all())
    if valid and flat.dtype == dtype:
        return flat
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = flat.astype(dtype)
        if valid and (floats or dtype.kind in "iub"):
            valid = not validation.changed_values(flat, numbers).any()
    if not valid:
        raise InvalidInput(validation.message(column.name, validation.count(flat, dtype)))
    return numbers


def _raw(values: pa.Array, column: InputColumn) -> Array:
    """Little-endian numbers of the column's dtype and shape, flat and without a copy; there are no nulls."""
    shape, dtype = cast("tuple[int, ...]", column.shape), cast(str, column.dtype)
    # Read a bool as a number, so that the cast can detect values other than 0 and 1.
    stored = np.dtype("uint8" if dtype == "bool" else dtype).newbyteorder("<")
    size = math.prod(shape) * stored.itemsize
    count = len(values) * math.prod(shape)
    lengths = np.asarray(pc.binary_length(values))
    wrong = lengths[lengths != size]
    if len(wrong):
        raise InvalidInput(
            f"column {column.name!r} has {len(wrong)} of {len(values)} values of a wrong length, such as {wrong[0]} "
            f"bytes; expected {size} bytes, the size of {dtype} of shape {shape}."
        )
    if not count:
        return np.empty(0, stored)
    *_, offsets, data = values.buffers()
    first = values.offset * size
    if not pa.types.is_fixed_size_binary(values.type):
        wide = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        first = int(np.frombuffer(offsets, wide)[values.offset])
    return np.frombuffer(data, stored, count, first)


def _decoded(values: pa.Array, column: InputColumn) -> Array:
    """Decode each value by the column's function, ``[rows, *shape]``; there are no nulls."""
    rows: Array | None = None
    for row, stored in enumerate(values):
        value = _call(column, stored.as_py())
        if rows is None:
            rows = np.empty((len(values), *value.shape), value.dtype)
        if (value.shape, value.dtype) != (rows.shape[1:], rows.dtype):
            raise InvalidInput(
                f"decode of column {column.name!r} returned {rows.dtype} of shape {rows.shape[1:]} for one row and "
                f"{value.dtype} of shape {value.shape} for another; expected one dtype and shape for all rows."
            )
        rows[row] = value
    return np.empty((0, *(column.shape or ())), column.dtype or "float32") if rows is None else rows


def _call(column: InputColumn, value: bytes) -> Array:
    assert column.decode is not None
    try:
        array = np.asarray(column.decode(value))
    except Exception as error:
        raise InvalidInput(
            f"decode of column {column.name!r} raised {type(error).__name__}: {str(error)[:_MOST]} (for a value of "
            f"{len(value)} bytes)."
        ) from error
    if array.dtype.kind not in "fiub":
        raise InvalidInput(
            f"decode of column {column.name!r} returned {array.dtype} of shape {array.shape}; expected an array of "
            "numbers or booleans."
        )
    return array
