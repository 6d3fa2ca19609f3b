"""FeatureHasher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.ml.features.column import Column
from sparkdl.ml.features.java_text import texts
from sparkdl.ml.features.murmur3 import bucket
from sparkdl.ml.features.saved_stage import SavedStage
from sparkdl.ml.features.stage import Columns, FeatureStage


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
