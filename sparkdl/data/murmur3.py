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

SEED = 42
"""Of Spark's hashes."""
_MASK = 0xFFFFFFFF
Hashes = npt.NDArray[np.uint32]


@lru_cache(maxsize=1 << 16)
def bucket(text: str, buckets: int) -> int:
    """The place that ``FeatureHasher`` gives a text: the signed hash modulo the number of buckets."""
    data = text.encode()
    last = _mixed(int.from_bytes(data[len(data) & ~3 :], "little"))
    return _signed(_finished(_of_words(data, SEED) ^ last, len(data))) % buckets


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


def hash_numbers(numbers: npt.NDArray[Any], seed: int) -> Hashes:
    """SQL's hash of integers of 32 or 64 bits."""
    words = np.ascontiguousarray(numbers).view(np.uint32).reshape(len(numbers), -1)  # the lower word first
    h: Any = np.full(len(numbers), seed, np.uint64)
    for word in words.T.astype(np.uint64):
        h = _chained(h, _mixed(word))
    hashes: Hashes = _finished(h, 4 * words.shape[1]).astype(np.uint32)
    return hashes


def number_like(text: str) -> int:
    """The integer of 32 bits whose hash is the text's: ``hash(number_like(name), x)`` is ``hash(name, x)``.

    Spark hashes an integer in each row faster than a name. Each step of the hash of one word has an inverse.
    """
    h = sql_hash(text.encode(), SEED)
    h = (h ^ h >> 16) * pow(0xC2B2AE35, -1, 1 << 32) & _MASK
    h = (h ^ h >> 13 ^ h >> 26) * pow(0x85EBCA6B, -1, 1 << 32) & _MASK
    h = ((h ^ h >> 16 ^ 4) - 0xE6546B64) * pow(5, -1, 1 << 32) & _MASK
    k = ((h >> 13 | h << 19) & _MASK ^ SEED) * pow(0x1B873593, -1, 1 << 32) & _MASK
    k = (k >> 15 | k << 17) * pow(0xCC9E2D51, -1, 1 << 32) & _MASK
    return _signed(k)


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
