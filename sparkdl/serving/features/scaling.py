"""Vectors: StandardScalerModel, MinMaxScalerModel, MaxAbsScalerModel, RobustScalerModel, Normalizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparkdl.serving.features.column import Array, Column
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.features.stage import FeatureStage


def _inverse(values: Array, of_zero: float = 0.0) -> Array:
    return np.where(values == 0, of_zero, 1.0 / np.where(values == 0, 1.0, values))


@dataclass(frozen=True, eq=False)
class StandardScalerModel(FeatureStage):
    """Subtracts the mean, ``shift``, and divides by the standard deviation, 1 / ``scale``; a deviation of 0 gives 0."""

    names: ClassVar[tuple[str, str, str, str]] = ("withMean", "mean", "withStd", "std")

    shift: Array | None = None
    scale: Array | None = None

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        centered, center, scaled, spread = cls.names
        shift = saved.vector(center) if saved.params[centered] else None
        scale = _inverse(saved.vector(spread)) if saved.params[scaled] else None
        return {"shift": shift, "scale": scale, "width": len(saved.vector(spread))}

    def _output(self, at: int, name: str, column: Column) -> Column:
        values = self.vectors(name, column, self.width)
        values = values if self.shift is None else values - self.shift
        return Column(values if self.scale is None else values * self.scale, column.null)


class RobustScalerModel(StandardScalerModel):
    """Subtracts the median, and divides by the range of quantiles; a range of 0 gives 0."""

    names = ("withCentering", "median", "withScaling", "range")


class MaxAbsScalerModel(StandardScalerModel):
    """Divides by the largest absolute value; one of 0 leaves the values as they are."""

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        scale = _inverse(saved.vector("maxAbs"), 1.0)
        return {"scale": scale, "width": len(scale)}


@dataclass(frozen=True, eq=False)
class MinMaxScalerModel(FeatureStage):
    """Maps the range of training to the range from ``least`` to ``most``; NaN stays, a constant becomes the middle."""

    low: Array = field(default_factory=lambda: np.zeros(0))
    high: Array = field(default_factory=lambda: np.zeros(0))
    least: float = 0.0
    most: float = 1.0

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        low, high = saved.vector("originalMin"), saved.vector("originalMax")
        least, most = saved.double("min"), saved.double("max")
        return {"low": low, "high": high, "least": least, "most": most, "width": len(low)}

    def _output(self, at: int, name: str, column: Column) -> Column:
        values, extent = self.vectors(name, column, len(self.low)), self.high - self.low
        scale = (self.most - self.least) / np.where(extent == 0, 1.0, extent)
        scaled = (values - self.low) * scale + self.least
        constant = (extent == 0) & ~np.isnan(values)
        return Column(np.where(constant, (self.least + self.most) / 2, scaled), column.null)


@dataclass(frozen=True)
class Normalizer(FeatureStage):
    """Divides each vector by its p-norm; a vector of zeros stays."""

    p: float = 2.0

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        return {"p": saved.double("p")}

    def _output(self, at: int, name: str, column: Column) -> Column:
        values = self.vectors(name, column)
        norm = _norm(np.abs(values), self.p)
        return Column(values / np.where(norm == 0, 1.0, norm)[:, None], column.null)


def _norm(values: Array, p: float) -> Array:
    if np.isinf(p):
        return np.asarray(np.fmax.reduce(values, axis=1, initial=0.0))
    powers = values if p == 1 else values * values if p == 2 else values**p
    # Spark adds from left to right; numpy's sum would add in pairs.
    total = np.add.accumulate(powers, axis=1)[:, -1] if powers.shape[1] else np.zeros(len(powers))
    return np.asarray(total if p == 1 else np.sqrt(total) if p == 2 else total ** (1.0 / p))
