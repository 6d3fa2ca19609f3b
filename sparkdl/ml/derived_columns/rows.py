"""The rows of a fit with their derived columns.

With ``validationFraction`` f, a row is a validation row if h(row) < -2^63 + f 2^64. The hash h is xxHash64 of the id,
or without ``idCol`` of inputs and labels, in which equal numbers of any type hash alike. So a row's side depends on its
values alone, not on types, partitions, precision, row weights or other rows. A larger f adds rows and takes none away.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.ml.derived_columns.class_weights import ClassWeights, WeightsByClass
from sparkdl.ml.params import TrainingParams
from sparkdl.spark.columns import col, same_names, select_columns, transport_cast
from sparkdl.spark.fingerprint import number_hashed, row_hash
from sparkdl.training.objective.labels import Classes

logger = logging.getLogger(__name__)

_VALIDATION, _WEIGHT = "sparkdl validation", "sparkdl weight by class"
_SPLIT = "validationSplit"  # in the identity of a run


@dataclass(frozen=True)
class ReadRows:
    """Rows with their derived columns, the columns that a fit reads from them, and the weights of the classes."""

    frame: DataFrame
    columns: Columns
    class_weights: ClassWeights | None = None


@dataclass(frozen=True)
class DerivedColumns:
    """The columns of a fit, and how it derives others; equal for fits that read the same from the same rows.

    Attributes:
        columns: the columns that the Params name.
        fraction: share of validation rows; default: it derives none.
        by_class: weights of classes; default: none.
    """

    columns: Columns
    fraction: float | None = None
    by_class: WeightsByClass | None = None

    @staticmethod
    def of(params: TrainingParams, columns: Columns, classes: Classes | None) -> DerivedColumns:
        """By an estimator's Params and the valid labels, if known; raises ``InvalidInput`` if two contradict."""
        fraction, indicator = params.getValidationFraction(), params.getValidationIndicatorCol()
        if fraction is not None and indicator is not None:
            raise InvalidInput(
                f"validationFraction is {fraction} and validationIndicatorCol is {indicator!r}; expected only one of "
                "them."
            )
        return DerivedColumns(columns, fraction, WeightsByClass.of(params, classes))

    def read(self, dataset: DataFrame) -> ReadRows:
        """Add the derived columns, of class weights by one Spark job; raises ``InvalidInput`` for invalid rows."""
        if self.fraction is None and self.by_class is None:
            return ReadRows(dataset, self.columns)
        select_columns(dataset, self.columns)  # raises before any job
        rows = self.with_validation(dataset)
        if self.by_class is None:
            return rows
        weights = self.by_class.compute(rows.frame, rows.columns)
        if not weights:
            return rows  # the feed raises, since no training row has a weight
        logger.info("The weights of the classes are %s.", weights)
        name = _free(rows.frame, _WEIGHT)
        frame = rows.frame.withColumn(name, self.by_class.column(rows.columns, weights))
        weight = InputColumn(name, self.columns.floating)
        return ReadRows(frame, replace(rows.columns, weight=weight), weights)

    def with_validation(self, dataset: DataFrame) -> ReadRows:
        """Add the column of validation rows alone, without a job."""
        if self.fraction is None:
            return ReadRows(dataset, self.columns)
        name = _free(dataset, _VALIDATION)
        frame = dataset.withColumn(name, self._is_held_out(dataset))
        return ReadRows(frame, replace(self.columns, validation=InputColumn(name, "bool")))

    def described_split(self, dataset: DataFrame, saved: object) -> dict[str, str]:
        """The entry for the split in the identity of a run, whose ``saved`` identity lacks it in an earlier version.

        Raises:
            InvalidInput: ``saved`` is of an earlier version that split the rows in another way, as a Spark job finds.
        """
        before = json.dumps(saved)
        if self.fraction is None or self.columns.row_id is not None:  # ids are hashed as they were
            return {}
        if _SPLIT in before or f'"validationFraction": "{self.fraction}"' not in before:
            return {_SPLIT: "by number"}
        moved: Any = "unknown many"  # if a pipeline makes the columns
        if {column.name for column in self.side_columns} <= {*dataset.columns}:
            moved = dataset.where(self._is_held_out(dataset) != self._is_held_out(dataset, by_type=True)).count()
        if moved:
            raise InvalidInput(
                "the saved run is of an earlier version of sparkdl, in which validation rows depended on the types of "
                f"columns; {moved} rows would change sides. Finish it with that version, or set another runDir."
            )
        return {}

    @property
    def side_columns(self) -> tuple[InputColumn, ...]:
        """The columns that decide on a row's side."""
        row_id = self.columns.row_id
        return (*self.columns.inputs, *self.columns.targets) if row_id is None else (row_id,)

    def _is_held_out(self, dataset: DataFrame, *, by_type: bool = False) -> SparkColumn:
        values = {column.name: transport_cast(dataset, column, "float64") for column in self.side_columns}
        if self.columns.row_id is not None:
            # Under this name, the sides are independent of a user's split by a hash of the same ids.
            values = {"validationFraction": values[self.columns.row_id.name].cast("bigint")}
        elif not by_type:  # as earlier versions did
            values = {name: number_hashed(col(name), dataset.schema[name].dataType) for name in values}
        return row_hash(values) < F.lit(int(-(2**63) + (self.fraction or 0) * 2**64)).cast("bigint")


def _free(frame: DataFrame, name: str) -> str:
    while same_names(frame, name, frame.columns):
        name += "'"
    return name
