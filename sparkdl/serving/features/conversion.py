"""Columns of a request as Arrow arrays, in the types that Spark had."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sparkdl.data.columns import is_list
from sparkdl.errors import InvalidInput

_NAMES = {"tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64", "boolean": "bool"}
_NAMES |= {"char": "string", "varchar": "string"}


def read_array(values: Any, name: str, *, nan_is_null: bool) -> pa.Array:
    """A column of pandas, Arrow, numpy or Python values as an Arrow array; None, NA and NaT are nulls.

    With ``nan_is_null``, NaN of pandas' numpy types and of Python's numbers is a null too; in arrays it stays NaN.

    Raises:
        InvalidInput: the values have no type in common.
    """
    try:
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else _built(values, nan_is_null)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidInput(f"column {name!r} cannot be read: {error}; expected values of one type.") from error


def cast_exactly(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Cast an array. Floating-point types take the nearest number, as in Java; every other value stays as it is.

    Raises ``InvalidInput`` if a value is of another kind, the type does not hold it, or it may be rounded already.
    """
    try:
        return _cast(array, kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise InvalidInput(f"column {name!r} has type {array.type}: {error}; expected values of {kind}.") from error


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of a type of Spark, such as ``"array<float>"``; raises ``InvalidInput`` if no stage reads it."""
    if kind == "vector" or kind.startswith("array<"):
        return pa.list_(arrow_type("double" if kind == "vector" else kind[6:-1]))
    if kind.startswith("decimal("):
        return pa.decimal128(*map(int, kind[8:-1].split(",")))
    name = re.split("[ (]", kind)[0]  # strings may have a length or a collation
    try:
        return pa.type_for_alias(_NAMES.get(name, name))
    except ValueError as error:
        raise InvalidInput(f"the type of a column is {kind!r}; expected a type of Spark that a stage reads.") from error


def with_elements(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    """The type of such lists of other elements."""
    return pa.list_(with_elements(kind.value_type, element)) if is_list(kind) else element


def _built(values: Any, nan_is_null: bool) -> pa.Array:
    if isinstance(values, pd.Series) and values.dtype != object:
        dense = values.sparse.to_dense() if isinstance(values.dtype, pd.SparseDtype) else values
        return pa.array(dense, from_pandas=nan_is_null)
    if not isinstance(values, np.ndarray) or values.dtype == object:
        if isinstance(values, (str, bytes, dict)):
            raise TypeError("it is one value, and not one for each row")
        values = [value.toArray() if hasattr(value, "toArray") else value for value in values]  # vectors of pyspark
        shapes = {getattr(value, "shape", ()) for value in values}
        values = np.stack(values) if len(shapes) == 1 and () not in shapes else values
    if isinstance(values, np.ndarray):
        array = pa.array(np.ascontiguousarray(values).reshape(-1), from_pandas=nan_is_null and values.ndim == 1)
        for length in reversed(values.shape[1:]):
            array = pa.FixedSizeListArray.from_arrays(array, length)
        return array if values.ndim else array.cast(pa.null())  # raises for a number without rows
    numbers = () if nan_is_null else (float, np.floating)
    missing = pd.Series(values, dtype=object).isna()
    plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    pairs = zip(missing, plain, strict=True)
    return pa.array([None if null and not isinstance(value, numbers) else value for null, value in pairs])


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.null_count == len(array):  # as pandas' NaN, they may be of any type
        return pa.nulls(len(array), kind)
    leaf, target = array, kind
    while is_list(leaf.type) and is_list(target):
        leaf, target = leaf.flatten(), target.value_type
        if leaf.null_count:
            raise ValueError("its arrays have nulls")
    if _kind(leaf.type) not in (_kind(target), "null"):
        raise TypeError("this is another kind of value")
    if pa.types.is_decimal(target):
        return pa.array([None if value is None else Decimal(str(value)) for value in array.to_pylist()], kind)
    if pa.types.is_decimal(leaf.type) and pa.types.is_floating(target):
        array = array.cast(with_elements(kind, pa.string()))  # Arrow reads text exactly, but rounds decimals twice
    if pa.types.is_floating(leaf.type):
        numbers = np.abs(leaf.drop_null().to_numpy(zero_copy_only=False))
        integral = pa.types.is_integer(target)
        # Floating-point numbers skip whole numbers above it, so that the value may have been another one.
        most = 2.0 ** (np.finfo(numbers.dtype).nmant + 1) - 1 if integral else np.finfo(target.to_pandas_dtype()).max
        if (numbers[np.isfinite(numbers)] > most).any():
            raise ValueError(f"it has numbers above {most:g}")
    return array.cast(kind)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return str(kind).removeprefix("large_").removesuffix("_view")
