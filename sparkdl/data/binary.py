"""Binary columns: raw numbers, or values that a user function decodes."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput

_MOST = 500  # characters of the user function's error to quote


def raw(values: pa.Array, column: InputColumn) -> npt.NDArray[Any]:
    """Little-endian numbers of the column's dtype and shape, flat and without a copy; ``values`` must have no nulls.

    Raises:
        InvalidInput: a value's length does not match the dtype and shape.
    """
    shape, dtype = cast("tuple[int, ...]", column.shape), cast(str, column.dtype)
    # Read a bool as a number, so that the cast can detect values other than 0 and 1.
    stored = np.dtype("uint8" if dtype == "bool" else dtype).newbyteorder("<")
    wanted = math.prod(shape) * stored.itemsize
    starts, lengths = _extents(values)
    wrong = lengths != wanted
    if wrong.any():
        raise InvalidInput(
            f"column {column.name!r} has a value of {int(lengths[np.argmax(wrong)])} bytes, and {int(wrong.sum())} of "
            f"{len(values)} values are not of the right length; expected {wanted} bytes, which {dtype} of shape "
            f"{shape} takes."
        )
    data = values.buffers()[-1]
    if data is None or not wanted or not len(values):
        return np.empty(len(values) * math.prod(shape), stored)
    return np.frombuffer(data, stored, len(values) * math.prod(shape), int(starts[0]))


def decoded(values: pa.Array, column: InputColumn) -> npt.NDArray[Any]:
    """Decode each value by the column's function, ``[rows, *shape]``; ``values`` must have no nulls.

    Raises:
        InvalidInput: the function raised, returned no numbers, or returned several shapes or dtypes.
    """
    found: npt.NDArray[Any] | None = None
    for row, value in enumerate(values):
        made = _call(column, value.as_py())
        if found is None:
            found = np.empty((len(values), *made.shape), made.dtype)
        if (made.shape, made.dtype) != (found.shape[1:], found.dtype):
            raise InvalidInput(
                f"decode of column {column.name!r} returned {found.dtype} of shape {found.shape[1:]} for one row and "
                f"{made.dtype} of shape {made.shape} for another; expected one dtype and shape for all rows."
            )
        found[row] = made
    return np.empty((0, *(column.shape or ())), column.dtype or "float32") if found is None else found


def _call(column: InputColumn, value: bytes) -> npt.NDArray[Any]:
    assert column.decode is not None
    try:
        made = np.asarray(column.decode(value))
    except Exception as error:
        raise InvalidInput(
            f"decode of column {column.name!r} raised {type(error).__name__}: {str(error)[:_MOST]} (for a value of "
            f"{len(value)} bytes)."
        ) from error
    if made.dtype.kind not in "fiub":
        raise InvalidInput(
            f"decode of column {column.name!r} returned {made.dtype} of shape {made.shape}; expected an array of "
            f"numbers or booleans."
        )
    return made


def _extents(values: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Start of each value in the data buffer and its length, in bytes."""
    if pa.types.is_fixed_size_binary(values.type):
        width = values.type.byte_width
        starts = (values.offset + np.arange(len(values), dtype=np.int64)) * width
        return starts, np.full(len(values), width)
    wide = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros(0, wide), np.zeros(0, wide)
    bounds = np.frombuffer(buffer, wide, len(values) + 1, values.offset * np.dtype(wide).itemsize)
    return bounds[:-1], np.diff(bounds)
