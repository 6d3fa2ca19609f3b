"""Spark's hash of values without Spark: MurmurHash3 x86, 32 bits, of A. Appleby.

The id of a value ``x`` in a hashed column is SQL's ``pmod(hash(name, x), rows)``. SQL hashes one value after another:
the hash of the name is the seed of the value's. A null changes no hash, so that nulls have the id of the name alone.
Integers and booleans are hashed as 64 bits, a date as the 32 bits of its days since 1970, and a string as UTF-8.

SQL mixes the last one to three bytes of a string one by one, and ``FeatureHasher`` mixes them together.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.columns import HASHED, InputColumn, is_list
from sparkdl.errors import InvalidInput

_SEED = 42
_MASK = 0xFFFFFFFF
Hashes = npt.NDArray[np.uint32]


def hashed_ids(array: pa.Array, column: InputColumn) -> pa.Array:
    """The ids of a hashed column's values, int32, or lists of them.

    Raises:
        InvalidInput: the values are no strings, whole numbers, booleans, dates, or lists of them.
    """
    if is_list(array.type) and not is_list(array.type.value_type):
        return _of_lists(array, column)
    seed, values = sql_hash((column.hash_as or column.name).encode(), _SEED), _values(array, column)
    valid = np.asarray(values.is_valid())
    hashes = np.full(len(values), seed, np.uint32)
    if pa.types.is_string(values.type):
        texts = values.dictionary_encode()
        distinct = [sql_hash(text.encode(), seed) for text in texts.dictionary.to_pylist()]
        places = texts.indices.drop_null().to_numpy(zero_copy_only=False)
        hashes[valid] = np.array(distinct, np.uint32)[places]
    elif len(numbers := values.drop_null()):
        hashes[valid] = _of_numbers(numbers.to_numpy(zero_copy_only=False), seed)
    assert column.hash is not None
    return pa.array((hashes.view(np.int32).astype(np.int64) % column.hash).astype(np.int32))


@lru_cache(maxsize=1 << 16)
def bucket(text: str, buckets: int) -> int:
    """The place that ``FeatureHasher`` gives a text: the signed hash modulo the number of buckets."""
    data = text.encode()
    last = _mixed(int.from_bytes(data[len(data) & ~3 :], "little"))
    return _signed(_finished(_of_words(data, _SEED) ^ last, len(data))) % buckets


def sql_hash(data: bytes, seed: int) -> int:
    """SQL's hash of a string's bytes, from 0 to 2^32 - 1."""
    h = _of_words(data, seed)
    for byte in data[len(data) & ~3 :]:
        h = _chained(h, _mixed((byte if byte < 128 else byte - 256) & _MASK))
    return int(_finished(h, len(data)))


def _of_words(data: bytes, seed: int) -> int:
    for first in range(0, len(data) & ~3, 4):
        seed = _chained(seed, _mixed(int.from_bytes(data[first : first + 4], "little")))
    return seed


def _of_numbers(numbers: npt.NDArray[Any], seed: int) -> Hashes:
    """SQL's hash of integers of 32 or 64 bits."""
    words = np.ascontiguousarray(numbers).view(np.uint32).reshape(len(numbers), -1)  # the lower word first
    h: Any = np.full(len(numbers), seed, np.uint64)
    for word in words.T.astype(np.uint64):
        h = _chained(h, _mixed(word))
    hashes: Hashes = _finished(h, 4 * words.shape[1]).astype(np.uint32)
    return hashes


# Numbers of Python, or arrays of 64 bits, below 2^32.


def _mixed(k: Any) -> Any:
    k = k * 0xCC9E2D51 & _MASK
    return ((k << 15 | k >> 17) & _MASK) * 0x1B873593 & _MASK


def _chained(h: Any, k: Any) -> Any:
    h = h ^ k
    return ((h << 13 | h >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK


def _finished(h: Any, length: int) -> Any:
    h = h ^ length
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def _signed(h: int) -> int:
    return h - (1 << 32) if h >> 31 else h


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
