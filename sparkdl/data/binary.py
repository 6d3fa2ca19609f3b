"""Binary columns: raw numbers, or whatever a function of the user's makes of them."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.data.columns import Column
from sparkdl.errors import InvalidInput

_MOST = 500  # characters of an error of the user's function


def raw(values: pa.Array, column: Column) -> npt.NDArray[Any]:
    """Little-endian numbers of the column's dtype, flat and without a copy.

    Args:
        values: binary values without nulls.
        column: what the column is, with a dtype and a shape.

    Raises:
        InvalidInput: a value is longer or shorter than its dtype and shape make it.
    """
    shape, dtype = cast("tuple[int, ...]", column.shape), cast(str, column.dtype)
    # A bool is read as a number, so that one that is neither 0 nor 1 is found.
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


def decoded(values: pa.Array, column: Column) -> npt.NDArray[Any]:
    """What the column's function makes of each value, ``[rows, *shape]``.

    Args:
        values: binary values without nulls.
        column: what the column is, with a function.

    Raises:
        InvalidInput: the function raised, did not return numbers, or returned rows of several shapes.
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


def _call(column: Column, value: bytes) -> npt.NDArray[Any]:
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
    """Where each value begins in the data, and its length, in bytes."""
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
