"""Columns of numbers: ImputerModel, Bucketizer, Binarizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparkdl.errors import InvalidInput
from sparkdl.ml.features.column import Column, shown
from sparkdl.ml.features.saved_stage import SavedStage
from sparkdl.ml.features.stage import FeatureStage, Kind, places


@dataclass(frozen=True)
class ImputerModel(FeatureStage):
    """Replaces nulls, and values equal to ``missing``, in the type of the column."""

    kind: ClassVar[Kind] = "double"

    surrogates: tuple[float, ...] = ()
    missing: float = np.nan

    @classmethod
    def of(cls, saved: SavedStage) -> ImputerModel:
        """Read the stage."""
        inputs, outputs = places(saved.params)
        surrogates = tuple(float(saved.data[name]) for name in inputs)
        return cls(saved.uid, inputs, outputs, surrogates=surrogates, missing=saved.double("missingValue"))

    def one(self, at: int, name: str, column: Column) -> Column:
        """The column without missing values."""
        values = self.numbers(name, column)
        equal = np.isnan(values) if np.isnan(self.missing) else values == self.missing
        filled = np.where(column.null | equal, self.surrogates[at], values)
        return Column.full(filled.astype(column.values.dtype))


@dataclass(frozen=True)
class Bucketizer(FeatureStage):
    """The index of the interval ``[split, next split)`` of each value; the last interval includes its end."""

    kind: ClassVar[Kind] = "double"

    splits: tuple[tuple[float, ...], ...] = ()
    keep: bool = False

    @classmethod
    def of(cls, saved: SavedStage) -> Bucketizer:
        """Read the stage."""
        several = saved.params.get("splitsArray") or [saved.params["splits"]]
        splits = tuple(tuple(float(split) for split in one) for one in several)  # float() reads "-Inf"
        return cls(saved.uid, *places(saved.params), splits=splits, keep=saved.params["handleInvalid"] == "keep")

    def one(self, at: int, name: str, column: Column) -> Column:
        """The indices; raises ``InvalidInput`` for values outside the splits, and for NaN unless it is kept."""
        splits, values = np.array(self.splits[at]), self.numbers(name, column)
        index = np.searchsorted(splits, values, side="right") - 1.0
        # Java orders -0.0 before 0.0.
        index -= (values == 0) & np.signbit(values) & np.isin(0.0, splits)
        index[values == splits[-1]] = len(splits) - 2
        missing = np.isnan(values)
        index[missing] = len(splits) - 1
        outside = ~missing & ((index < 0) | (values > splits[-1]))
        wrong = ~column.null & (outside if self.keep else outside | missing)
        if wrong.any():
            raise InvalidInput(
                f"{self}: the column {name!r} has {shown(values[wrong])}; expected values from {splits[0]} to "
                f"{splits[-1]}. Train with other splits, or for NaN with handleInvalid='keep'."
            )
        return Column(index, column.null)


@dataclass(frozen=True)
class Binarizer(FeatureStage):
    """1 where a number is above the threshold, else 0, of columns of numbers and of vectors."""

    kind: ClassVar[Kind] = "same"

    thresholds: tuple[float, ...] = ()

    @classmethod
    def of(cls, saved: SavedStage) -> Binarizer:
        """Read the stage."""
        inputs, outputs = places(saved.params)
        several = saved.params.get("thresholds")
        thresholds = saved.doubles("thresholds") if several else [saved.double("threshold")] * len(inputs)
        return cls(saved.uid, inputs, outputs, thresholds=tuple(thresholds))

    def one(self, at: int, name: str, column: Column) -> Column:
        """The column of 0 and 1; of a column of numbers, nulls and NaN become 0."""
        threshold = self.thresholds[at]
        if column.values.ndim == 1 and column.values.dtype != object:
            return Column.full((self.numbers(name, column) > threshold).astype(np.float64))
        values = self.vectors(name, column)
        # Spark compares the other way round if the threshold is negative, so NaN becomes 1.
        above = values > threshold if threshold >= 0 else ~(values <= threshold)
        return Column(above.astype(np.float64), column.null)
