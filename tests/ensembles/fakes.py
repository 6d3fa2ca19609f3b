"""Rows for any ensemble, and estimators whose models show their training rows."""

from __future__ import annotations

import numpy as np
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol, HasSeed
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

ROWS = 120
_RANDOM = np.random.default_rng(3)
X = _RANDOM.normal(size=(ROWS, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.25 + 0.3 * _RANDOM.normal(size=ROWS)
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "y": Y,
    "coin": _RANDOM.integers(0, 2, ROWS).astype(np.float64),
    "several": np.clip(np.round(X[:, 0] + 1.2), 0, 2),
    "label": (Y > 0).astype(np.float64),
}


class Known(Model, HasLabelCol, HasPredictionCol):
    """Predicts the labels of its training rows, and 0 for all others."""

    def __init__(self, labels: dict[int, float]) -> None:
        super().__init__()
        self.labels = labels

    def found(self, unknown: float) -> Column:
        entries = [F.lit(each) for row in self.labels.items() for each in row]
        return F.coalesce(F.element_at(F.create_map(*entries), F.col("row").cast("int")), F.lit(unknown))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), self.found(0.0))


class KnownClasses(Known, HasProbabilityCol):
    """Is certain of the classes of its training rows, and gives all others the probability 0.5."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        chances = array_to_vector(F.array(F.lit(1.0) - self.found(0.5), self.found(0.5)))
        scored = dataset.withColumn(self.getProbabilityCol(), chances)
        return scored.withColumn(self.getPredictionCol(), (self.found(0.5) > 0.5).cast("double"))


class Memoriser(Estimator[Known], HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol, HasSeed):
    """Memorises the labels, by the column ``row``."""

    def __init__(self, label: str = "label", kind: type[Known] = Known) -> None:
        super().__init__()
        self.kind = kind
        self._set(labelCol=label)

    def _fit(self, dataset: DataFrame) -> Known:
        rows = dataset.select("row", F.col(self.getLabelCol()).cast("double")).collect()
        return self._copyValues(self.kind({int(row): label for row, label in rows}))


class Constant(Model, HasPredictionCol):
    """Predicts one number for every row."""

    value: Param[float] = Param(Params._dummy(), "value", "the prediction")

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), F.lit(self.getOrDefault(self.value)))


class Crippled(Estimator[Constant], HasLabelCol, HasPredictionCol):
    """Its models predict one number, whatever their training rows."""

    value: Param[float] = Param(Params._dummy(), "value", "the prediction")

    def __init__(self, value: float = 100.0, label: str = "label") -> None:
        super().__init__()
        self._set(value=value, labelCol=label)

    def _fit(self, dataset: DataFrame) -> Constant:
        return self._copyValues(Constant())
