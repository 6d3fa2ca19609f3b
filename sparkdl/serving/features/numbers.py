"""Columns of numbers: ImputerModel, Bucketizer, Binarizer."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, ClassVar

import numpy as np

from sparkdl.errors import InvalidInput
from sparkdl.serving.features.column import Column, shown
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.features.stage import FeatureStage, Kind


@dataclass(frozen=True)
class ImputerModel(FeatureStage):
    """Replaces nulls, and values equal to ``missing``, in the type of the column."""

    kind: ClassVar[Kind] = "double"

    surrogates: tuple[float, ...] = ()
    missing: float = np.nan

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        names = saved.params.get("inputCols") or [saved.params["inputCol"]]
        surrogates = tuple(float(saved.data[name]) for name in names)
        return {"surrogates": surrogates, "missing": saved.double("missingValue")}

    def _output(self, at: int, name: str, column: Column) -> Column:
        values = self.numbers(name, column)
        equal = np.isnan(values) if np.isnan(self.missing) else values == self.missing
        filled: Any = np.where(column.null | equal, self.surrogates[at], values)
        if column.values.dtype == np.int64:  # the largest long, as a double, is beyond longs
            filled = [min(int(value), 2**63 - 1) for value in filled.tolist()]
        elif column.values.dtype == object:
            unit = Decimal((0, (1,), column.values[0].as_tuple().exponent))
            filled = [Decimal(repr(value)).quantize(unit, ROUND_HALF_UP) for value in filled.tolist()]
        return Column.full(np.array(filled, dtype=column.values.dtype))


@dataclass(frozen=True)
class Bucketizer(FeatureStage):
    """The index of the interval ``[split, next split)`` of each value; the last interval includes its end."""

    kind: ClassVar[Kind] = "double"

    splits: tuple[tuple[float, ...], ...] = ()
    keep: bool = False

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        several = saved.params.get("splitsArray") or [saved.params["splits"]]
        splits = tuple(tuple(float(split) for split in one) for one in several)  # float() reads "-Inf"
        return {"splits": splits, "keep": saved.params["handleInvalid"] == "keep"}

    def _output(self, at: int, name: str, column: Column) -> Column:
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
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        single = [saved.params.get("threshold")] * len(saved.params.get("inputCols") or "1")
        return {"thresholds": tuple(map(float, saved.params.get("thresholds") or single))}

    def _output(self, at: int, name: str, column: Column) -> Column:
        threshold = self.thresholds[at]
        if column.is_number:
            return Column.full((self.numbers(name, column) > threshold).astype(np.float64))
        values = self.vectors(name, column)
        # Spark compares the other way round if the threshold is negative, so NaN becomes 1.
        above = values > threshold if threshold >= 0 else ~(values <= threshold)
        return Column(above.astype(np.float64), column.null)
