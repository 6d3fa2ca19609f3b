"""Binary columns: raw numbers, or values that a user function decodes."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.columns import InputColumn
from sparkdl.data.validation import Array
from sparkdl.errors import InvalidInput

_MOST = 500  # characters of a decode function's error to quote


def raw(values: pa.Array, column: InputColumn) -> Array:
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


def decoded(values: pa.Array, column: InputColumn) -> Array:
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
