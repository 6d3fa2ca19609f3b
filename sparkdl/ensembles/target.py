"""The columns that an ensemble itself reads: labels, weights, and the validation indicators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from sparkdl.ensembles.base_learner import check_column, column
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import col


@dataclass(frozen=True)
class Target:
    """Column names of one fit.

    Attributes:
        label: label column.
        weight: column of user weights; default: weight 1 for each row.
        validation: boolean column of the boosting's validation rows, which members do not see.
        watched: boolean column of the base's own validation rows, which members see but do not train on.
    """

    label: str
    weight: str | None = None
    validation: str | None = None
    watched: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of the columns of labels and weights."""
        return [name for name in (self.label, self.weight) if name is not None]

    @property
    def labels(self) -> Column:
        """The labels, doubles."""
        return col(self.label).cast("double")

    @property
    def weights(self) -> Column:
        """The weights, doubles."""
        return F.lit(1.0) if self.weight is None else col(self.weight).cast("double")

    @property
    def valid(self) -> Column:
        """Whether a row is for validation."""
        return _is_true(self.validation)

    @property
    def counts(self) -> Column:
        """Whether a row counts as a training row."""
        return ~self.valid & ~_is_true(self.watched)

    def aggregates(self, dataset: DataFrame, wrong: Column, expected: str, **others: Column) -> Row:
        """The ``others`` of the rows, from the job that validates labels and weights.

        ``wrong`` is whether a row has an invalid label. The error message describes valid labels as ``expected``.

        Raises:
            InvalidInput: a row has an invalid label, or a weight that is negative or not finite.
        """
        bad = (self.counts | self.valid) & (not_finite(self.weights) | (self.weights < 0))
        faults = {
            f"a label in {self.label!r} that is no {expected}": wrong,
            f"a weight in {self.weight!r} that is no finite number of at least 0": bad,
        }
        columns = {fault: F.count_if(condition) for fault, condition in faults.items()} | others
        row: Row = dataset.agg(*(value.alias(name) for name, value in columns.items())).collect()[0]
        for fault in faults:
            if row[fault]:
                raise InvalidInput(f"{row[fault]} rows have {fault}.")
        return row


def target_of(base: Estimator[Any], dataset: DataFrame, validation: str | None = None) -> Target:
    """Validated column names of a base, and the boosting's own ``validationIndicatorCol``.

    Raises:
        InvalidInput: the base has no label column or several, or a column is missing or has the wrong type.
    """
    label = column(base, "labelCol")
    if label is None:
        raise InvalidInput("base has no labelCol, or several; expected one column of labels.")
    target = Target(label, column(base, "weightCol"), validation, column(base, "validationIndicatorCol"))
    for param, name, boolean in (
        ("labelCol", target.label, False),
        ("weightCol", target.weight, False),
        ("validationIndicatorCol", target.validation, True),
        ("base's validationIndicatorCol", target.watched, True),
    ):
        if name is None:
            continue
        check_column(dataset, param, name)
        kind = dataset.schema[name].dataType
        if not isinstance(kind, BooleanType if boolean else (NumericType, BooleanType)):
            expected = "booleans" if boolean else "numbers"
            raise InvalidInput(f"{param} is {name!r}, of type {kind.simpleString()}; expected {expected}.")
    return target


def check_outputs(base: Estimator[Any], dataset: DataFrame) -> None:
    """Raise InvalidInput if the data has a column that the base's models write."""
    for param in ("predictionCol", "probabilityCol", "rawPredictionCol"):
        if column(base, param) in dataset.columns:
            raise InvalidInput(
                f"the data has a column {column(base, param)!r}, which the base's models write; drop it, or set the "
                f"base's {param} to another name."
            )


def not_finite(values: Column) -> Column:
    """Whether a double is null, NaN or infinite."""
    return values.isNull() | F.isnan(values) | (F.abs(values) == F.lit(float("inf")))


def _is_true(name: str | None) -> Column:
    return F.lit(False) if name is None else F.coalesce(col(name), F.lit(False))
