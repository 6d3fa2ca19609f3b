"""One vector of many columns: VectorAssembler and FeatureHasher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.murmur3 import bucket
from sparkdl.errors import InvalidInput
from sparkdl.serving.features.column import Array, Column, texts
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.features.stage import Columns, FeatureStage


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
