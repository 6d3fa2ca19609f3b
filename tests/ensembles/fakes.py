"""Estimators whose models show on which rows they were trained."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol, HasSeed
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


class Known(Model, HasLabelCol, HasPredictionCol):
    """Predicts the labels of the rows that it was trained on, and 0 of all others."""

    def __init__(self, labels: dict[int, float]) -> None:
        super().__init__()
        self.labels = labels

    def found(self) -> Any:
        entries = [F.lit(each) for row in self.labels.items() for each in row]
        return F.coalesce(F.element_at(F.create_map(*entries), F.col("row").cast("int")), F.lit(0.0))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), self.found())


class Memoriser(Estimator[Known], HasFeaturesCol, HasLabelCol, HasPredictionCol, HasSeed):
    """Learns the labels by heart, by the column ``row``; with ``ones`` it learns 1 for each row."""

    def __init__(self, label: str = "label", ones: bool = False, **given: Any) -> None:
        super().__init__()
        self.ones = ones
        self._set(labelCol=label, **given)

    def _fit(self, dataset: DataFrame) -> Known:
        rows = dataset.select("row", F.col(self.getLabelCol()).cast("double")).collect()
        return self._copyValues(self.made({int(row): 1.0 if self.ones else label for row, label in rows}))

    def made(self, labels: dict[int, float]) -> Known:
        return Known(labels)


class KnownClasses(Known, HasProbabilityCol):
    """Is sure of the classes of the rows that it was trained on, and knows nothing of all others."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        entries = [F.lit(each) for row in self.labels.items() for each in row]
        found = F.coalesce(F.element_at(F.create_map(*entries), F.col("row").cast("int")), F.lit(0.5))
        chances = array_to_vector(F.array(F.lit(1.0) - found, found))
        return dataset.withColumn(self.getProbabilityCol(), chances).withColumn(
            self.getPredictionCol(), (found > 0.5).cast("double")
        )


class ClassMemoriser(Memoriser, HasProbabilityCol):
    """A memoriser of two classes."""

    def made(self, labels: dict[int, float]) -> KnownClasses:
        return KnownClasses(labels)


class Constant(Model, HasPredictionCol):
    """Predicts one number of every row."""

    value: Param[float] = Param(Params._dummy(), "value", "the prediction")

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return dataset.withColumn(self.getPredictionCol(), F.lit(self.getOrDefault(self.value)))


class Crippled(Estimator[Constant], HasLabelCol, HasPredictionCol):
    """Its models predict one number, whatever they were trained on."""

    value: Param[float] = Param(Params._dummy(), "value", "the prediction")

    def __init__(self, value: float = 100.0, label: str = "label") -> None:
        super().__init__()
        self._set(value=value, labelCol=label)

    def _fit(self, dataset: DataFrame) -> Constant:
        return self._copyValues(Constant())


class Failing(Crippled):
    """Cannot be trained."""

    def _fit(self, dataset: DataFrame) -> Constant:
        raise RuntimeError("it was made to fail")
