"""The validation rows of a base's ``validationFraction``, marked before rows are drawn or labels replaced."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.param import Params
from pyspark.sql import DataFrame

from sparkdl.ml.estimator import DistributedEstimator
from sparkdl.ml.persistence.nested_params import within


def with_validation_column(base: Estimator[Any], rows: DataFrame) -> tuple[Estimator[Any], DataFrame]:
    """A base whose networks name new columns of validation rows instead of a ``validationFraction``; rows with them.

    If a pipeline makes the columns that decide on a row's side, its network keeps the Param and marks the rows itself.
    """
    if not _networks(base):
        return base, rows
    copied = base.copy()
    for network in _networks(copied):
        derived = network.derived_columns()
        if {column.name for column in derived.side_columns} <= {*rows.columns}:
            read = derived.with_validation(rows)
            assert read.columns.validation is not None
            rows = read.frame
            network.setValidationFraction(None).setValidationIndicatorCol(read.columns.validation.name)
    return copied, rows


def described_splits(bases: Sequence[Estimator[Any]], rows: DataFrame, saved: object) -> dict[str, str]:
    """``DerivedColumns.described_split`` of all networks in the bases."""
    derived = [network.derived_columns() for base in bases for network in _networks(base)]
    return dict(ChainMap(*(columns.described_split(rows, saved) for columns in derived)))


def _networks(base: Params) -> list[DistributedEstimator]:
    networks = [part for part in within(base) if isinstance(part, DistributedEstimator)]
    return [network for network in networks if network.getValidationFraction() is not None]
