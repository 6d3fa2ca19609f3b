"""The columns that boosting itself reads: labels, weights, and the validation indicators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from sparkdl.data.columns import listed
from sparkdl.ensembles.base_learner import column
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import col

OUTPUTS = ("predictionCol", "probabilityCol", "rawPredictionCol")


@dataclass(frozen=True)
class Target:
    """Column names of one boosting fit.

    Attributes:
        label: label column.
        weight: column of user weights; default: weight 1 for each row.
        validation: boolean column of the boosting's validation rows, which members do not see; default: none.
        watched: boolean column of the base's own validation rows, which members see but do not train on; default:
            none.
    """

    label: str
    weight: str | None = None
    validation: str | None = None
    watched: str | None = None

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
        return F.lit(False) if self.validation is None else F.coalesce(col(self.validation), F.lit(False))

    @property
    def counts(self) -> Column:
        """Whether a row counts as a training row."""
        watched = F.lit(False) if self.watched is None else F.coalesce(col(self.watched), F.lit(False))
        return ~self.valid & ~watched


def target_of(base: Estimator[Any], dataset: DataFrame, validation: str | None) -> Target:
    """Read the column names from a base, and validate them.

    Args:
        base: estimator with ``labelCol``, ``weightCol`` and ``validationIndicatorCol``.
        dataset: the rows.
        validation: the boosting's own ``validationIndicatorCol``.

    Raises:
        InvalidInput: a column is missing or has the wrong type, or the data has an output column of the base.
    """
    label = column(base, "labelCol")
    if label is None:
        raise InvalidInput("base has no labelCol, or several; boosting expects one column of labels.")
    found = Target(label, column(base, "weightCol"), validation, column(base, "validationIndicatorCol"))
    for param, name, boolean in (
        ("labelCol", found.label, False),
        ("weightCol", found.weight, False),
        ("validationIndicatorCol", found.validation, True),
        ("base's validationIndicatorCol", found.watched, True),
    ):
        if name is None:
            continue
        if name not in dataset.columns:
            raise InvalidInput(f"{param} is {name!r}; the data has {listed(dataset.columns)}.")
        kind = dataset.schema[name].dataType
        if not isinstance(kind, BooleanType if boolean else (NumericType, BooleanType)):
            wanted = "booleans" if boolean else "numbers"
            raise InvalidInput(f"{param} is {name!r}, of type {kind.simpleString()}; expected {wanted}.")
    for param in OUTPUTS:
        if column(base, param) in dataset.columns:
            raise InvalidInput(
                f"the data has a column {column(base, param)!r}, which the base's models write; drop it, or set the "
                f"base's {param} to another name."
            )
    return found


def refuse(faults: Mapping[str, object]) -> None:
    """Raise InvalidInput if a number of faulty rows, given by fault, is above 0."""
    for what, rows in faults.items():
        if rows:
            raise InvalidInput(f"{rows} rows have {what}.")


def not_finite(values: Column) -> Column:
    """Whether a double is null, NaN or infinite."""
    return values.isNull() | F.isnan(values) | (F.abs(values) == F.lit(float("inf")))


def counted(condition: Column) -> Column:
    """Aggregate: number of rows that meet a condition."""
    return F.count(F.when(condition, 1))


def weight_fault(target: Target) -> tuple[str, Column]:
    """Description of invalid weights, and the aggregate that counts them."""
    weights = target.weights
    return f"a weight in {target.weight!r} that is no finite number of at least 0", counted(
        (target.counts | target.valid) & (not_finite(weights) | (weights < 0))
    )
