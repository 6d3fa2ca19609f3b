"""One vector of many columns: VectorAssembler and FeatureHasher. Spark hashes strings by MurmurHash3 x86, 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sparkdl.errors import InvalidInput
from sparkdl.serving.features.column import Array, Column, texts
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.features.stage import Columns, FeatureStage

_MASK = 0xFFFFFFFF
_SEED = 42


@dataclass(frozen=True)
class VectorAssembler(FeatureStage):
    """Joins numbers, booleans and vectors to one vector; ``keep`` makes NaN of nulls, and keeps NaN."""

    keep: bool = False

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        return {"keep": saved.params["handleInvalid"] == "keep"}

    def _outputs(self, columns: Columns) -> dict[str, Column]:
        pieces = [self._piece(name, columns[name]) for name in self.inputs]
        return {self.outputs[0]: Column.full(np.concatenate(pieces, axis=1) + 0.0)}  # Spark omits -0.0 as a zero

    def _piece(self, name: str, column: Column) -> Array:
        number = column.is_number
        values = self.numbers(name, column)[:, None] if number else self.vectors(name, column)
        # As in Spark, NaN inside a vector is no error.
        invalid = np.isnan(values[:, 0]) if number else column.null
        if not self.keep and invalid.any():
            raise InvalidInput(
                f"{self}: the column {name!r} has {int(invalid.sum())} rows with null or NaN; fill them, or train with "
                "handleInvalid='keep'."
            )
        return np.where(column.null[:, None], np.nan, values)


@dataclass(frozen=True)
class FeatureHasher(FeatureStage):
    """Adds each value at the place of its hash: numbers by the column's name, others by ``name=value``."""

    categorical: frozenset[str] = frozenset()

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        categorical = frozenset(saved.params.get("categoricalCols") or ())
        return {"width": saved.params["numFeatures"], "categorical": categorical}

    def _outputs(self, columns: Columns) -> dict[str, Column]:
        rows = len(columns[self.inputs[0]].null)
        hashed = np.zeros((rows, self.width))
        for name in self.inputs:
            column = columns[name]
            present = np.flatnonzero(~column.null)
            if column.is_number and column.values.dtype != bool and name not in self.categorical:
                hashed[present, bucket(name, self.width)] += self.numbers(name, column)[present]
                continue
            distinct, codes = self.read(name, column.categories)
            places = [bucket(f"{name}={text}", self.width) for text in texts(distinct)]
            hashed[present, np.array(places, dtype=np.intp)[codes]] += 1.0
        return {self.outputs[0]: Column.full(hashed)}


def _mix(k: int) -> int:
    k = (k * 0xCC9E2D51) & _MASK
    return ((k << 15 | k >> 17) * 0x1B873593) & _MASK


@lru_cache(maxsize=1 << 16)
def bucket(text: str, buckets: int) -> int:
    """The bucket of a text's UTF-8 bytes, from 0: the signed hash modulo the number of buckets."""
    data = text.encode()
    aligned = len(data) & ~3
    h = _SEED
    for start in range(0, aligned, 4):
        h ^= _mix(int.from_bytes(data[start : start + 4], "little"))
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & _MASK
    h ^= _mix(int.from_bytes(data[aligned:], "little")) ^ len(data)
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _MASK
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return (h - (1 << 32) if h >> 31 else h) % buckets
