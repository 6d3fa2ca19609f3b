"""Binary columns: raw numbers, or values that a user function decodes."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    count = len(values) * math.prod(shape)
    if not len(values):
        return np.empty(count, stored)
    lengths = np.asarray(pc.binary_length(values))
    wrong = lengths[lengths != wanted]
    if len(wrong):
        raise InvalidInput(
            f"column {column.name!r} has {len(wrong)} of {len(values)} values of a wrong length, such as {wrong[0]} "
            f"bytes; expected {wanted} bytes, the size of {dtype} of shape {shape}."
        )
    *_, offsets, data = values.buffers()
    if not wanted:
        return np.empty(count, stored)
    first = values.offset * wanted
    if not pa.types.is_fixed_size_binary(values.type):
        wide = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        first = int(np.frombuffer(offsets, wide)[values.offset])
    return np.frombuffer(data, stored, count, first)


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
            "numbers or booleans."
        )
    return made
