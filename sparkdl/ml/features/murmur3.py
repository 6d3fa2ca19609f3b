"""MurmurHash3 x86 32 bit, as Spark hashes strings."""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF
_SEED = 42


def _mix(k: int) -> int:
    k = (k * 0xCC9E2D51) & _MASK
    return ((k << 15 | k >> 17) * 0x1B873593) & _MASK


@lru_cache(maxsize=1 << 16)
def bucket(text: str, buckets: int) -> int:
    """The bucket of a text's UTF-8 bytes, from 0: the signed hash modulo the number of buckets."""
    data = text.encode()
    whole = len(data) & ~3
    h = _SEED
    for start in range(0, whole, 4):
        h ^= _mix(int.from_bytes(data[start : start + 4], "little"))
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & _MASK
    h ^= _mix(int.from_bytes(data[whole:], "little")) ^ len(data)
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _MASK
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return (h - (1 << 32) if h >> 31 else h) % buckets
