"""The validation rows of a base's ``validationFraction``, marked before rows are drawn or labels replaced."""

from __future__ import annotations

from typing import Any, cast

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import DataFrame

from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.persistence.nested_params import within


def with_validation_column(base: Estimator[Any], rows: DataFrame) -> tuple[Estimator[Any], DataFrame]:
    """A base whose networks name new columns of validation rows instead of a ``validationFraction``; rows with them.

    If a pipeline makes the columns that decide on a row's side, its network keeps the Param and marks the rows itself.
    """
    if not any(map(_has_fraction, within(base))):
        return base, rows
    copied = base.copy()
    for part in filter(_has_fraction, within(copied)):
        network = cast(DistributedEstimator, part)
        derived = network.derived_columns()
        if {column.name for column in derived.side_columns} <= {*rows.columns}:
            read = derived.with_validation(rows)
            assert read.columns.validation is not None
            rows = read.frame
            network.setValidationFraction(None).setValidationIndicatorCol(read.columns.validation.name)
    return copied, rows


def _has_fraction(part: Params) -> bool:
    return isinstance(part, DistributedEstimator) and part.getValidationFraction() is not None
