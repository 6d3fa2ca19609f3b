"""VectorAssembler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import InvalidInput
from sparkdl.ml.features.column import Array, Column
from sparkdl.ml.features.saved_stage import SavedStage
from sparkdl.ml.features.stage import Columns, FeatureStage


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
