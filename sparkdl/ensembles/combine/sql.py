"""Combination of any members in one pass: each adds hidden columns, which Spark expressions combine.

``model.py`` has the equations. A class unknown to a member gets the probability 0 from it. A null from a member counts
as NaN, and the ensemble's prediction is then NaN. The expressions are lazy and shuffle nothing.

If each row has its own voters, a member counts on the rows that its column of ``with_voters`` marks, and on no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType

from sparkdl.ensembles.base_learner import changed, leaf
from sparkdl.ensembles.combine.rules import VOTES, Combining, in_order
from sparkdl.errors import InvalidInput
from sparkdl.ml.params import PredictionParams
from sparkdl.spark.columns import col

_VOTES, _PROBABILITY, _PREDICTION = "sparkdl votes", "sparkdl probability", "sparkdl prediction"
_VOTER = "voter"


@dataclass(frozen=True)
class SqlCombiner:
    """Combines members by Spark expressions.

    Hard votes require the number of classes; soft votes extend it to the members' largest number. With ``voters``, the
    rows have the columns of ``with_voters``, and each row has a voter.
    """

    models: Sequence[Model]
    combining: Combining
    classes: int | None = None
    thresholds: Sequence[float] | None = None
    voters: bool = False

    def with_outputs(self, dataset: DataFrame, names: dict[str, str]) -> DataFrame:
        """Append the ensemble's output columns to the rows.

        ``names`` has the names of the columns ``"raw"``, ``"probability"``, ``"prediction"`` and ``"disagreement"``,
        the first two for votes alone; "" omits a column.
        """
        columns = [self.combining.column]
        if self.combining.rule == "soft" and self.combining.disagreement:
            columns.append("prediction")
        frame = dataset
        for index, model in enumerate(self.models):
            frame = _with_member(frame, model, index, columns)
        return self.combined(frame, names, dataset.columns)

    def combined(self, frame: DataFrame, names: dict[str, str], columns: Sequence[str]) -> DataFrame:
        """Combine rows that have the members' columns; of all others, keep the ``columns``."""
        frame, outputs = self._votes(frame) if self.combining.rule in VOTES else self._number(frame)
        added = (output.alias(names[name]) for name, output in outputs.items() if names.get(name))
        return frame.select(*map(col, columns), *added)

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
            total_weight = F.lit(in_order(self.combining.weights))
            share = (total_weight - agree) / total_weight
            outputs["disagreement"] = F.when(F.isnan(col(_PREDICTION)), math.nan).otherwise(share)
        return frame, outputs

    def _soft(self) -> Column:
        none = F.array().cast("array<double>")
        chances = [self._of_voter(index, _column(index, "probability"), none) for index in range(len(self.models))]
        if self.classes is not None:
            chances = [F.array_repeat(F.lit(0.0), self.classes), *chances]
        weights = (1.0,) * (len(chances) - len(self.models)) + tuple(self.combining.weights)
        return _weighted_arrays(chances, weights, missing=0.0)

    def _hard(self) -> Column:
        assert self.classes is not None
        # Of a row without a vote, any class is valid: the sum leaves it out.
        predictions = [self._of_voter(index, _number(index), F.lit(0.0)) for index in range(len(self.models))]
        count, predicted = self.classes, F.array(*predictions)
        outside = F.exists(predicted, lambda one: ~F.isnan(one) & ((one < 0) | (one >= count)))
        message = f"a member predicts a class outside 0 to {self.classes - 1}; set numClasses"
        missing = F.exists(predicted, F.isnan)

        def votes(class_: Column) -> Column:
            return self._sum(lambda index: F.when(predictions[index] == class_, 1.0).otherwise(0.0))

        classes = F.array(*(F.lit(float(class_)) for class_ in range(self.classes)))
        counted = F.when(missing, F.array_repeat(F.lit(math.nan), self.classes)).otherwise(F.transform(classes, votes))
        return F.when(outside, F.raise_error(F.lit(message))).otherwise(counted)

    def _number(self, frame: DataFrame) -> tuple[DataFrame, dict[str, Column]]:
        kinds = [frame.schema[_name(index, "prediction")].dataType for index in range(len(self.models))]
        arrays = {isinstance(kind, ArrayType) for kind in kinds}
        if len(arrays) > 1:
            raise InvalidInput("some members predict numbers and others arrays; expected all the same.")
        if self.voters and arrays == {True}:
            raise InvalidInput("the members predict arrays; an out-of-bag score expects numbers.")
        rule, intercept, weights = self.combining.rule, self.combining.intercept, self.combining.weights
        total_weight = self._sum(lambda _: F.lit(1.0)) if self.voters else F.lit(in_order(weights))

        def finished(total: Column) -> Column:
            return total / total_weight if rule == "mean" else total + intercept

        if arrays == {True}:
            members = [F.transform(_column(index).cast("array<double>"), _or_nan) for index in range(len(kinds))]
            number = F.transform(_weighted_arrays(members, weights), finished)

            def square(index: int) -> Column:
                spread = F.zip_with(members[index], number, lambda one, mean: _square(one - mean))
                return F.aggregate(spread, F.lit(0.0), lambda sum_, one: sum_ + one) / F.size(number)
        else:
            number = finished(self._sum(_number))

            def square(index: int) -> Column:
                return _square(_number(index) - number)

        outputs = {"prediction": number.cast(_common(kinds))}
        if self.combining.disagreement:
            outputs["disagreement"] = F.sqrt(self._sum(square) / total_weight)
        return frame, outputs

    def _sum(self, value: Callable[[int], Column]) -> Column:
        weights = enumerate(self.combining.weights)
        terms = [self._of_voter(index, F.lit(weight) * value(index), F.lit(0.0)) for index, weight in weights]
        return F.aggregate(F.array(*terms), F.lit(0.0), lambda sum_, term: sum_ + term)

    def _of_voter(self, index: int, value: Column, otherwise: Column) -> Column:
        return F.when(_column(index, _VOTER), value).otherwise(otherwise) if self.voters else value


def with_voters(frame: DataFrame, voters: Sequence[Column]) -> DataFrame:
    """Append a boolean column per member: whether it votes on the row."""
    return frame.withColumns({_name(index, _VOTER): voter for index, voter in enumerate(voters)})


def with_members(frame: DataFrame, predictions: str, combining: Combining) -> DataFrame:
    """Append the members' columns from a column of separate predictions, see ``Combining``."""
    count, numbers = len(combining.weights), col(predictions)
    if combining.rule == "soft":
        size = (F.size(numbers) / count).cast("int")
        columns = [F.slice(numbers, size * index + 1, size).cast("array<double>") for index in range(count)]
    else:
        columns = [F.get(numbers, index).cast("double") for index in range(count)]
    return frame.withColumns({_name(index, combining.column): column for index, column in enumerate(columns)})


def _with_member(frame: DataFrame, model: Model, index: int, columns: Sequence[str]) -> DataFrame:
    names = {param: _name(index, param.removesuffix("Col")) for param in ("predictionCol", "probabilityCol")}
    names["rawPredictionCol"] = _name(index, "raw")
    if isinstance(leaf(model), PredictionParams):  # models of sparkdl skip columns named ""
        names = {param: name if param.removesuffix("Col") in columns else "" for param, name in names.items()}
        names["disagreementCol"] = ""
    outputs = [_output(index, name).alias(_name(index, name)) for name in columns]
    return changed(model, **names).transform(frame).select(*map(col, frame.columns), *outputs)


def _name(index: int, what: str) -> str:
    return f"sparkdl member {index} {what}"


def _column(index: int, what: str = "prediction") -> Column:
    return col(_name(index, what))


def _number(index: int) -> Column:
    return _or_nan(_column(index).cast("double"))


def _output(index: int, what: str) -> Column:
    vector = _column(index, what)
    if what != "probability":
        return vector
    return F.when(vector.isNull(), F.array(F.lit(math.nan))).otherwise(vector_to_array(vector))


def _or_nan(value: Column) -> Column:
    return F.coalesce(value, F.lit(math.nan))


def _square(value: Column) -> Column:
    return value * value


def _weighted_arrays(arrays: Sequence[Column], weights: Sequence[float], missing: float | None = None) -> Column:
    scaled = [F.transform(array, _times(weight)) for array, weight in zip(arrays, weights, strict=True)]

    def plus(left: Column, right: Column) -> Column:
        # zip_with pads the shorter array with nulls.
        return left + right if missing is None else F.coalesce(left, F.lit(missing)) + F.coalesce(right, F.lit(missing))

    if len(scaled) == 1:
        return scaled[0]
    # Spark resolves lambdas within lambdas level by level, at most a hundred levels.
    return F.aggregate(F.array(*scaled[1:]), scaled[0], lambda total, array: F.zip_with(total, array, plus))


def _times(weight: float) -> Callable[[Column], Column]:
    return lambda value: F.lit(weight) * value


def _class(votes: Column, chances: Column, thresholds: Sequence[float] | None) -> Column:
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
    elements = [kind.elementType if isinstance(kind, ArrayType) else kind for kind in kinds]
    element: DataType = FloatType() if all(isinstance(kind, FloatType) for kind in elements) else DoubleType()
    return ArrayType(element) if isinstance(kinds[0], ArrayType) else element
