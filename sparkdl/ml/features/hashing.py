"""FeatureHasher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl.ml.features.column import Column
from sparkdl.ml.features.java_text import texts
from sparkdl.ml.features.murmur3 import bucket
from sparkdl.ml.features.saved_stage import SavedStage
from sparkdl.ml.features.stage import Columns, FeatureStage, places


@dataclass(frozen=True)
class FeatureHasher(FeatureStage):
    """Adds each value at the place of its hash: numbers by the column's name, others by ``name=value``."""

    features: int = 1 << 18
    categorical: frozenset[str] = frozenset()

    @classmethod
    def of(cls, saved: SavedStage) -> FeatureHasher:
        """Read the stage."""
        categorical = frozenset(saved.params.get("categoricalCols") or ())
        return cls(saved.uid, *places(saved.params), features=saved.params["numFeatures"], categorical=categorical)

    @property
    def width(self) -> int:
        """The numbers that it adds to a row."""
        return self.features

    def added(self, columns: Columns) -> dict[str, Column]:
        """The vector; nulls add nothing."""
        rows = len(columns[self.inputs[0]].null)
        hashed = np.zeros((rows, self.features))
        for name in self.inputs:
            column = columns[name]
            present = np.flatnonzero(~column.null)
            if column.values.dtype.kind in "iuf" and name not in self.categorical:
                hashed[present, bucket(name, self.features)] += self.numbers(name, column)[present]
                continue
            distinct, codes = self.read(name, column.categories)
            places = [bucket(f"{name}={text}", self.features) for text in texts(distinct)]
            hashed[present, np.array(places, dtype=np.intp)[codes]] += 1.0
        return {self.outputs[0]: Column.full(hashed)}
