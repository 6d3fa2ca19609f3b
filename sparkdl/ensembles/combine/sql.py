"""Combination of any members in one pass: each adds hidden columns, which Spark expressions combine.

``rules.py`` has the equations. A class unknown to a member gets the probability 0 from it. A null from a member counts
as NaN, and the ensemble's prediction is then NaN. The expressions are lazy and shuffle nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType

from sparkdl.ensembles.base_learner import leaf
from sparkdl.ensembles.combine.rules import VOTES, Combining, in_order
from sparkdl.errors import InvalidInput
from sparkdl.ml.params import PredictionParams
from sparkdl.spark.columns import col

_VOTES, _PROBABILITY, _PREDICTION = "sparkdl votes", "sparkdl probability", "sparkdl prediction"


@dataclass(frozen=True)
class SqlCombiner:
    """Combines members by Spark expressions.

    Hard votes require the number of classes; soft votes extend it to the members' largest number.
    """

    models: Sequence[Model]
    combining: Combining
    classes: int | None = None
    thresholds: Sequence[float] | None = None

    def with_outputs(self, dataset: DataFrame, names: dict[str, str]) -> DataFrame:
        """Append the ensemble's output columns to the rows.

        ``names`` has the names of the columns ``"raw"``, ``"probability"``, ``"prediction"`` and ``"disagreement"``,
        the first two for votes alone; "" omits a column.
        """
        columns = ["probability"] if self.combining.rule == "soft" else ["prediction"]
        if self.combining.rule == "soft" and self.combining.disagreement:
            columns.append("prediction")
        frame = dataset
        for index, model in enumerate(self.models):
            frame = _with_member(frame, model, index, columns)
        frame, outputs = self._votes(frame) if self.combining.rule in VOTES else self._number(frame)
        added = (output.alias(names[name]) for name, output in outputs.items() if names[name])
        return frame.select(*map(col, dataset.columns), *added)

    def _votes(self, frame: DataFrame) -> tuple[DataFrame, dict[str, Column]]:
        frame = frame.withColumn(_VOTES, self._soft() if self.combining.rule == "soft" else self._hard())
        total = F.aggregate(col(_VOTES), F.lit(0.0), lambda sum_, votes: sum_ + votes)
        frame = frame.withColumn(_PROBABILITY, F.transform(col(_VOTES), lambda votes: votes / total))
        frame = frame.withColumn(_PREDICTION, _class(col(_VOTES), col(_PROBABILITY), self.thresholds))
        outputs = {
            "raw": array_to_vector(col(_VOTES)),
            "probability": array_to_vector(col(_PROBABILITY)),
            "prediction": col(_PREDICTION),
        }
        if self.combining.disagreement:
            agree = self._sum(lambda index: F.when(_column(index) == col(_PREDICTION), 1.0).otherwise(0.0))
            mass = F.lit(in_order(self.combining.weights))
            outputs["disagreement"] = F.when(F.isnan(col(_PREDICTION)), math.nan).otherwise((mass - agree) / mass)
        return frame, outputs

    def _soft(self) -> Column:
        chances = [_chances(index) for index in range(len(self.models))]
        if self.classes is not None:
            chances = [F.array_repeat(F.lit(0.0), self.classes), *chances]
        weights = (1.0,) * (len(chances) - len(self.models)) + tuple(self.combining.weights)
        return _weighted_arrays(chances, weights, missing=0.0)

    def _hard(self) -> Column:
        assert self.classes is not None
        predictions = [_number(index) for index in range(len(self.models))]
        outside = [~F.isnan(one) & ((one < 0) | (one >= self.classes)) for one in predictions]
        message = f"a member predicts a class outside 0 to {self.classes - 1}; set numClasses"
        missing = reduce(Column.__or__, map(F.isnan, predictions))

        def votes(class_: Column) -> Column:
            return self._sum(lambda index: F.when(predictions[index] == class_, 1.0).otherwise(0.0))

        classes = F.array(*(F.lit(float(class_)) for class_ in range(self.classes)))
        counted = F.when(missing, F.array_repeat(F.lit(math.nan), self.classes)).otherwise(F.transform(classes, votes))
        return F.when(reduce(Column.__or__, outside), F.raise_error(F.lit(message))).otherwise(counted)

    def _number(self, frame: DataFrame) -> tuple[DataFrame, dict[str, Column]]:
        kinds = [frame.schema[_name(index, "prediction")].dataType for index in range(len(self.models))]
        arrays = {isinstance(kind, ArrayType) for kind in kinds}
        if len(arrays) > 1:
            raise InvalidInput("some members predict numbers and others arrays; expected all the same.")
        outputs = self._arrays() if arrays == {True} else self._scalars()
        return frame, outputs | {"prediction": outputs["prediction"].cast(_common(kinds))}

    def _scalars(self) -> dict[str, Column]:
        mass = F.lit(in_order(self.combining.weights))
        total = self._sum(_number)
        number = total / mass if self.combining.rule == "mean" else total + self.combining.intercept
        outputs = {"prediction": number}
        if self.combining.disagreement:
            squares = self._sum(lambda index: _square(_number(index) - number))
            outputs["disagreement"] = F.sqrt(squares / mass)
        return outputs

    def _arrays(self) -> dict[str, Column]:
        mass, weights = F.lit(in_order(self.combining.weights)), self.combining.weights
        arrays = [F.transform(_column(index).cast("array<double>"), _or_nan) for index in range(len(self.models))]
        total = _weighted_arrays(arrays, weights)
        intercept = self.combining.intercept
        number = F.transform(total, lambda sum_: sum_ / mass if self.combining.rule == "mean" else sum_ + intercept)
        outputs = {"prediction": number}
        if self.combining.disagreement:
            spreads = [F.zip_with(array, number, lambda one, mean: _square(one - mean)) for array in arrays]
            sums = [F.aggregate(spread, F.lit(0.0), lambda sum_, one: sum_ + one) for spread in spreads]
            squares = self._sum(lambda index: sums[index] / F.size(number))
            outputs["disagreement"] = F.sqrt(squares / mass)
        return outputs

    def _sum(self, value: Callable[[int], Column]) -> Column:
        """``sum_m a_m value(m)``, in the order of the members."""
        terms = [F.lit(weight) * value(index) for index, weight in enumerate(self.combining.weights)]
        return reduce(Column.__add__, terms)


def _with_member(frame: DataFrame, model: Model, index: int, columns: Sequence[str]) -> DataFrame:
    last: Any = leaf(model)
    names = {param: _name(index, param.removesuffix("Col")) for param in ("predictionCol", "probabilityCol")}
    names["rawPredictionCol"] = _name(index, "raw")
    if isinstance(last, PredictionParams):  # models of sparkdl skip columns named ""
        names = {param: name if param.removesuffix("Col") in columns else "" for param, name in names.items()}
        names["disagreementCol"] = ""
    values: Any = {last.getParam(param): name for param, name in names.items() if last.hasParam(param)}
    return (
        model.copy(values)
        .transform(frame)
        .select(*map(col, frame.columns), *(_column(index, name) for name in columns))
    )


def _name(index: int, what: str) -> str:
    return f"sparkdl member {index} {what}"


def _column(index: int, what: str = "prediction") -> Column:
    return col(_name(index, what))


def _number(index: int) -> Column:
    return _or_nan(_column(index).cast("double"))


def _chances(index: int) -> Column:
    vector = _column(index, "probability")
    return F.when(vector.isNull(), F.array(F.lit(math.nan))).otherwise(vector_to_array(vector))


def _or_nan(value: Column) -> Column:
    return F.coalesce(value, F.lit(math.nan))


def _square(value: Column) -> Column:
    return value * value


def _weighted_arrays(arrays: Sequence[Column], weights: Sequence[float], missing: float | None = None) -> Column:
    """``sum_m a_m array_m``; ``missing`` pads shorter arrays."""
    scaled = [F.transform(array, _times(weight)) for array, weight in zip(arrays, weights, strict=True)]

    def plus(one: Column, other: Column) -> Column:
        # zip_with pads the shorter array with nulls.
        return one + other if missing is None else F.coalesce(one, F.lit(missing)) + F.coalesce(other, F.lit(missing))

    return reduce(lambda total, array: F.zip_with(total, array, plus), scaled)


def _times(weight: float) -> Callable[[Column], Column]:
    return lambda value: F.lit(weight) * value


def _class(votes: Column, chances: Column, thresholds: Sequence[float] | None) -> Column:
    """Predicted class, the smallest of equals; NaN if any vote is NaN."""
    best = votes
    if thresholds is not None:
        bounds = F.array(*(F.lit(float(bound)) for bound in thresholds))
        best = F.zip_with(
            chances,
            bounds,
            lambda chance, bound: F.when(chance == 0, 0.0).when(bound == 0, F.lit(math.inf)).otherwise(chance / bound),
        )
        message = f"thresholds has {len(thresholds)} numbers, but the ensemble has another number of classes"
        best = F.when(F.size(votes) != len(thresholds), F.raise_error(F.lit(message))).otherwise(best)
    prediction = (F.array_position(best, F.array_max(best)) - 1).cast("double")
    return F.when(F.exists(votes, F.isnan), F.lit(math.nan)).otherwise(prediction)


def _common(kinds: Sequence[DataType]) -> DataType:
    """Type of the combined prediction: float if all members predict floats, else double."""
    elements = [kind.elementType if isinstance(kind, ArrayType) else kind for kind in kinds]
    element: DataType = FloatType() if all(isinstance(kind, FloatType) for kind in elements) else DoubleType()
    return ArrayType(element) if isinstance(kinds[0], ArrayType) else element
