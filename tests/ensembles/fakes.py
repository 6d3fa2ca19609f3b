"""Rows and members for any ensemble: models that show their training rows, cuts of a number, and networks."""

from __future__ import annotations

import numpy as np
import torch
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol, HasSeed
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from torch import nn

from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel

VECTORS = ("rawPrediction", "probability", "prediction")
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

    def label_of_row(self, unknown: float) -> Column:
        entries = [F.lit(entry) for row in self.labels.items() for entry in row]
        return F.coalesce(F.element_at(F.create_map(*entries), F.col("row").cast("int")), F.lit(unknown))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), self.label_of_row(0.0))


class KnownClasses(Known, HasProbabilityCol):
    """Is certain of the classes of its training rows, and gives all others the probability 0.5."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        chances = array_to_vector(F.array(F.lit(1.0) - self.label_of_row(0.5), self.label_of_row(0.5)))
        scored = dataset.withColumn(self.getProbabilityCol(), chances)
        return scored.withColumn(self.getPredictionCol(), (self.label_of_row(0.5) > 0.5).cast("double"))


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


def linear(outputs=3):
    return nn.Linear(3, outputs)


def moved(factory, seed, dtype=torch.float32):
    """The factory's module with other weights."""
    module, random = factory().to(dtype), torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random, dtype=dtype)
    return module


def member(factory=linear, kind="classifier", seed=0, dtype=torch.float32, **others):
    made = TorchModel(factory=factory, weights=pack(moved(factory, seed, dtype)), kind=kind, **others)
    return made.setInputCols(["x"])


def members(factory=linear, kind="classifier", count=3, **others):
    return [member(factory, kind, seed, **others) for seed in range(count)]


def outputs(model, rows, *names):
    """The output columns as arrays, in the order of the rows."""
    made = model.transform(rows)
    vectors = {field.name for field in made.schema if isinstance(field.dataType, VectorUDT)}
    chosen = [vector_to_array(name).alias(name) if name in vectors else F.col(name) for name in names]
    collected = made.orderBy("row").select(*chosen).collect()
    return [np.array([row[name] for row in collected], np.float64) for name in names]
