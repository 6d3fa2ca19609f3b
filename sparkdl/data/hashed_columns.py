"""The ids of hashed columns without Spark: SQL's ``pmod(hash(name, x), rows)`` of each value ``x``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.columns import HASHED, InputColumn, is_list
from sparkdl.data.murmur3 import SEED, hash_numbers, sql_hash
from sparkdl.errors import InvalidInput


def hashed_ids(array: pa.Array, column: InputColumn) -> pa.Array:
    """The ids of a hashed column's values, int32, or lists of them.

    Raises:
        InvalidInput: the values are no strings, whole numbers, booleans, dates, or lists of them.
    """
    if is_list(array.type) and not is_list(array.type.value_type):
        return _of_lists(array, column)
    seed, values = sql_hash((column.hash_as or column.name).encode(), SEED), _values(array, column)
    valid = np.asarray(values.is_valid())
    hashes = np.full(len(values), seed, np.uint32)
    if pa.types.is_string(values.type):
        texts = values.dictionary_encode()
        distinct = [sql_hash(text.encode(), seed) for text in texts.dictionary.to_pylist()]
        places = texts.indices.drop_null().to_numpy(zero_copy_only=False)
        hashes[valid] = np.array(distinct, np.uint32)[places]
    elif len(numbers := values.drop_null()):
        hashes[valid] = hash_numbers(numbers.to_numpy(zero_copy_only=False), seed)
    assert column.hash is not None
    return pa.array((hashes.view(np.int32).astype(np.int64) % column.hash).astype(np.int32))


def _of_lists(array: pa.Array, column: InputColumn) -> pa.Array:
    if column.ragged is not None and array.null_count:  # a null counts as a list of one null
        array = pa.array([[None] if one is None else one for one in array.to_pylist()], pa.list_(array.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), mask=None)
    mask = None if not array.null_count else array.is_null()
    return pa.ListArray.from_arrays(offsets, hashed_ids(array.flatten(), column), mask=mask)


def _values(array: pa.Array, column: InputColumn) -> pa.Array:
    """The values as strings, int64, or days as int32."""
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode(), column)
    if str(kind).removeprefix("large_").removesuffix("_view") == "string":
        return array.cast(pa.string())
    if pa.types.is_floating(kind):  # pandas makes such numbers of integers and nulls
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64)
        known = numbers[~np.isnan(numbers)]
        if np.array_equal(known, np.trunc(known)) and (np.abs(known) < 2.0**53).all():
            return pa.array(numbers, from_pandas=True).cast(pa.int64())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).cast(pa.int64())
    if pa.types.is_integer(kind):
        return array.cast(pa.int64())
    if pa.types.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32())
    raise InvalidInput(f"column {column.name!r} has hash={column.hash}, and values of {kind}; expected {HASHED}.")
