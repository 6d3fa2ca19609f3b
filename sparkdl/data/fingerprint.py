"""Fingerprint of a shard: detects whether rows that were read again have changed.

With m the 64-bit mixer of splitmix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA
2014) and all sums modulo 2^64,

    h_r     = m(sum over columns c and 8-byte words w_j of row r in c of  m(w_j + k_cj))
    content = sum_r h_r                          depends on the rows, not on their order
    order   = sum_i m(h_r(i) + i g)              depends on the rows and their order; i counts rows from 1

where k_cj is a constant of the column's name and of j, and g an odd constant. The shards' contents add up to the data
set's, for any sharding. A fingerprint detects accidents, not attacks: m is no secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparkdl.data.batch import Input, Ragged
from sparkdl.data.shard import Shard, scan

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Fingerprint:
    """A shard's row count, and the hashes of its rows without and with their order."""

    rows: int
    content: int
    order: int

    def __str__(self) -> str:
        return f"{self.rows}-{self.content:016x}-{self.order:016x}"

    @staticmethod
    def parse(text: str) -> Fingerprint:
        """Parse the text of ``str(fingerprint)``."""
        rows, content, order = text.split("-")
        return Fingerprint(int(rows), int(content, 16), int(order, 16))


class FingerprintScan:
    """Hashes the stored rows of a shard, over all columns but the row ids."""

    def __init__(self, shard: Shard) -> None:
        identity, self._shard = shard.columns.row_id, shard
        self.names = sorted(name for name in shard.tensors if identity is None or name != identity.name)
        seeds = {name: hashlib.sha256(name.encode()).digest()[:8] for name in self.names}
        self._seeds = {name: int.from_bytes(seed, "little") for name, seed in seeds.items()}
        self._hashes = np.zeros(len(next(iter(shard.tensors.values()))), np.uint64)

    def visit(self, first: int, rows: Mapping[str, Input]) -> None:
        """Add the words of some rows to their hashes."""
        for name in self.names:
            piece, seed = rows[name], self._seeds[name]
            mixed = _ragged(piece, seed) if isinstance(piece, Ragged) else _row_sums(piece, seed)
            self._hashes[first : first + len(mixed)] += mixed

    def result(self) -> Fingerprint:
        """The fingerprint, once all rows are read."""
        shard, hashes = self._shard, _mix(self._hashes.copy())  # mixed in place
        content = int(hashes.sum(dtype=np.uint64))
        ordered = hashes if shard.order is None else hashes[shard.order.numpy()]
        ordered = ordered + np.arange(1, shard.rows + 1, dtype=np.uint64) * _GOLDEN
        return Fingerprint(shard.rows, content, int(_mix(ordered).sum(dtype=np.uint64)))


def fingerprint(shard: Shard) -> Fingerprint:
    """Hash all rows of a shard; reads the rows once."""
    marks = FingerprintScan(shard)
    scan(shard, marks)
    return marks.result()


def total(fingerprints: list[Fingerprint]) -> tuple[int, int]:
    """Rows and content of all shards together."""
    return sum(shard.rows for shard in fingerprints), sum(shard.content for shard in fingerprints) % (1 << 64)


def _row_sums(rows: Tensor, seed: int) -> Words:
    if not rows.numel():
        return np.zeros(len(rows), np.uint64)
    raw = rows.numpy().reshape(len(rows), -1).view(np.uint8)
    missing = -raw.shape[1] % 8
    words: Words = np.ascontiguousarray(np.pad(raw, ((0, 0), (0, missing))) if missing else raw).view(np.uint64)
    keys = _mix(np.uint64(seed) + np.arange(words.shape[1], dtype=np.uint64) * _GOLDEN)
    sums: Words = _mix(words + keys).sum(axis=1, dtype=np.uint64)
    return sums


def _ragged(rows: Ragged, seed: int) -> Words:
    bounds = rows.bounds.numpy()
    lengths = (bounds[1:] - bounds[:-1]).astype(np.uint64)
    values = _row_sums(rows.values, seed)
    places = np.arange(len(values), dtype=np.uint64) - np.repeat(bounds[:-1].astype(np.uint64), lengths.astype(int))
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(_mix(values + places * _GOLDEN), out=sums[1:])
    hashes: Words = sums[bounds[1:]] - sums[bounds[:-1]] + _mix(lengths + np.uint64(seed))
    return hashes


def _mix(words: Words) -> Words:
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
