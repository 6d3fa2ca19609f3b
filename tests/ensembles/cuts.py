"""Members whose predictions a test can compute by itself, and rows for them."""

from __future__ import annotations

import numpy as np
from pyspark.ml import Model
from pyspark.ml.param.shared import HasPredictionCol
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


class Cut(Model, HasPredictionCol):
    """Predicts ``low`` up to a number ``x``, and ``high`` above it."""

    def __init__(self, at: float, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.at, self.low, self.high = at, low, high

    def _transform(self, dataset: DataFrame) -> DataFrame:
        prediction = F.when(F.col("x") > self.at, self.high).otherwise(self.low)
        return dataset.withColumn(self.getPredictionCol(), prediction)

    def of(self, x: np.ndarray) -> np.ndarray:
        """The same in NumPy."""
        return np.where(x > self.at, self.high, self.low)


def rows(count: int = 240, classes: int = 3) -> dict[str, np.ndarray]:
    """Rows whose label goes with ``x``, but not always."""
    random = np.random.default_rng(5)
    x = random.uniform(0, classes, count)
    label = np.clip(np.floor(x + random.normal(0, 0.4, count)), 0, classes - 1)
    return {"row": np.arange(count), "x": x, "label": label, "w": random.uniform(0.1, 3.0, count)}
