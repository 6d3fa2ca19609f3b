"""Weights of classes as weights of rows.

With ``classWeights``, a row's weight in the loss is a_i c(y_i), with a_i of ``weightCol``, else 1. "balanced" are
scikit-learn's weights of the k classes among the training rows,

    c(y) = sum_i a_i / (k sum_(i: y_i = y) a_i)

The sums are exact, since a run resumes only with equal weights: rounded ones would depend on the order of the rows.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType
from torch import Tensor, nn

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.ml.params import TrainingParams
from sparkdl.spark.columns import col
from sparkdl.spark.exact_sums import sums_by
from sparkdl.spark.session import session_of
from sparkdl.training.objective.labels import Classes
from sparkdl.training.objective.loss import as_module

_MOST_CLASSES = 100_000  # of unknown number

ClassWeights = list[float | None]
"""A weight for each class; None for a class without training rows."""


@dataclass(frozen=True)
class WeightsByClass:
    """The value of ``classWeights``, and the valid labels."""

    given: str | tuple[float, ...]
    classes: Classes

    @staticmethod
    def of(params: TrainingParams, classes: Classes | None) -> WeightsByClass | None:
        """By an estimator's Params and the valid labels, if known; raises ``InvalidInput`` if they contradict."""
        weights = params.getClassWeights()
        if weights is None:
            return None
        if classes is None:
            raise InvalidInput(
                f"classWeights is {weights!r}, and {type(params).__name__} with labelCol={params.getLabelCol()!r} has "
                "no class indices; expected a TorchClassifier with one label column, or weightCol."
            )
        loss: Any = as_module(params.getLoss())
        names = [name for name in ("weight", "pos_weight") if isinstance(getattr(loss, name, None), Tensor)]
        if names and isinstance(loss, nn.modules.loss._Loss):
            raise InvalidInput(
                f"classWeights is {weights!r}, and the loss is {type(loss).__name__}({names[0]}=...); expected only "
                "one of them."
            )
        if isinstance(weights, list) and classes.count not in (None, len(weights)):
            raise InvalidInput(
                f"classWeights is {weights}; expected a number for each of the {classes.count} classes, or 'balanced'."
            )
        return WeightsByClass(weights if isinstance(weights, str) else tuple(weights), classes)

    def compute(self, frame: DataFrame, columns: Columns) -> ClassWeights:
        """The weights of the classes, empty without rows, by one job; raises ``InvalidInput`` for invalid rows."""
        sums = self._summed(frame, columns)
        if isinstance(self.given, tuple):
            return [*self.given]
        training, validation = (
            {int(label): total for (label, side), total in sums.items() if side is held and total}
            for held in (False, True)
        )
        weights = balanced(training)
        if weights and (unseen := sorted(validation.keys() - training.keys())):
            warnings.warn(
                f"classWeights is 'balanced', and the classes {unseen[:20]} have validation rows, but no training "
                "rows; these rows weigh 0 in valid_loss.",
                stacklevel=6,
            )
            weights += [None] * (unseen[-1] + 1 - len(weights))
        return weights

    def column(self, columns: Columns, weights: ClassWeights) -> SparkColumn:
        """The weight of each row; null for a label that ``compute`` has not seen."""
        label, row_weight = _label_and_weight(columns)
        # One literal, however many classes there are.
        table = F.from_json(F.lit(json.dumps([weight or 0.0 for weight in weights])), "array<double>")
        factor = F.get(table, label.cast("int"))
        if self.classes.ignored is not None:
            factor = F.when(label == self.classes.ignored, 1.0).otherwise(factor)
        return row_weight * factor

    @property
    def _count(self) -> int | None:
        return len(self.given) if isinstance(self.given, tuple) else self.classes.count

    def _summed(self, frame: DataFrame, columns: Columns) -> dict[tuple[Any, ...], Fraction]:
        """The total weights by (label, whether the rows are validation rows), from one job."""
        (target,) = columns.targets
        kind = frame.schema[target.name].dataType
        if not isinstance(kind, NumericType | BooleanType):
            raise InvalidInput(
                f"classWeights is set, and label column {target.name!r} has type {kind.simpleString()[:200]}; expected "
                "one class index per row."
            )
        label, row_weight = _label_and_weight(columns)
        held = F.lit(False)
        if columns.validation is not None:
            held = F.coalesce(col(columns.validation.name).cast("boolean"), held)
        # Labels that are no classes may be many. Among so many, one is no class.
        most = 2 * (self._count or _MOST_CLASSES) + 3
        with session_of(frame.sparkSession).described("sparkdl: count the classes"):
            sums = sums_by(frame, F.when(row_weight >= 0, row_weight).otherwise(math.nan), most, label=label, held=held)
        if (count := sum(wrong for _, wrong in sums.values())) and columns.weight is not None:
            raise InvalidInput(
                f"weight column {columns.weight.name!r} holds {count} values that are no finite numbers of at least 0; "
                "expected such weights beside classWeights."
            )
        totals = {key: total for key, (total, _) in sums.items() if key[0] is None or key[0] != self.classes.ignored}
        self._check_labels({label for label, _ in totals}, target.name)
        return totals

    def _check_labels(self, labels: Collection[float | None], column: str) -> None:
        most = self._count or _MOST_CLASSES
        for label in labels:
            if label is None or not (label.is_integer() and 0 <= label < most):
                reason = f" classWeights has {most} numbers." if isinstance(self.given, tuple) else ""
                value = "null" if label is None else int(label) if label.is_integer() else label
                raise InvalidInput(
                    f"label column {column!r} holds {value}; expected class indices from 0 to {most - 1}."
                    f"{reason} pyspark.ml.feature.StringIndexer makes class indices from any labels."
                )


def balanced(totals: Mapping[int, Fraction]) -> ClassWeights:
    """The weights that make the totals of all classes equal; raises InvalidInput if one exceeds the largest double."""
    total, labels = sum(totals.values()), range(max(totals, default=-1) + 1)
    try:
        return [float(total / (len(totals) * totals[label])) if label in totals else None for label in labels]
    except OverflowError as error:
        raise InvalidInput(
            "classWeights is 'balanced', and the rows of one class weigh 1e308 times as much as the rows of another; "
            "expected row weights of similar size."
        ) from error


def _label_and_weight(columns: Columns) -> tuple[SparkColumn, SparkColumn]:
    assert isinstance(columns.target, InputColumn)
    weight = F.lit(1.0) if columns.weight is None else col(columns.weight.name).cast("double")
    return col(columns.target.name).cast("double"), weight
