"""Categories: StringIndexerModel, IndexToString, OneHotEncoderModel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparkdl.errors import InvalidInput
from sparkdl.serving.features.column import Column, shown, texts
from sparkdl.serving.features.saved_stage import SavedStage
from sparkdl.serving.features.stage import FeatureStage, Kind

_KEEP = "train with handleInvalid='keep'"


@dataclass(frozen=True)
class StringIndexerModel(FeatureStage):
    """The index of each label; with ``keep``, nulls and unknown labels have the index after the last."""

    kind: ClassVar[Kind] = "double"

    labels: tuple[tuple[str, ...], ...] = ()
    keep: bool = False

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        labels = tuple(map(tuple, saved.data["labelsArray"]))
        return {"labels": labels, "keep": saved.params["handleInvalid"] == "keep"}

    def _output(self, at: int, name: str, column: Column) -> Column:
        labels = {label: float(index) for index, label in enumerate(self.labels[at])}
        unknown = float(len(labels)) if self.keep else np.nan
        indices = np.full(len(column.null), unknown)
        present = ~column.null
        distinct, codes = self.read(name, column.categories)
        decimals = column.is_number and distinct.dtype == object  # Spark casts them without an exponent
        written = [f"{value:f}" for value in distinct] if decimals else texts(distinct)
        positions = np.array([labels.get(text, unknown) for text in written], dtype=np.float64)
        indices[present] = positions[codes]
        if np.isnan(indices).any():
            wrong = ["null" if column.null.any() else "", shown(distinct[np.isnan(positions)])]
            raise InvalidInput(
                f"{self}: the column {name!r} has {' and '.join(filter(None, wrong))}, which training did not see; "
                f"expected one of its {len(labels)} labels. Leave these rows out, or {_KEEP}."
            )
        return Column.full(indices)


@dataclass(frozen=True)
class IndexToString(FeatureStage):
    """The label of each index."""

    kind: ClassVar[Kind] = "string"

    labels: tuple[str, ...] = ()

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        return {"labels": tuple(saved.params.get("labels") or ())}  # without its own, the pipeline finds them

    def _output(self, at: int, name: str, column: Column) -> Column:
        present = ~column.null
        index = self.numbers(name, column)[present]
        # Java converts NaN to 0, and fractions towards 0.
        positions = np.nan_to_num(index, nan=0.0, posinf=2**31 - 1, neginf=-(2**31)).astype(np.int64)
        outside = (positions < 0) | (positions >= len(self.labels))
        if outside.any():
            raise InvalidInput(
                f"{self}: the column {name!r} has {shown(index[outside])}; expected an index of one of the "
                f"{len(self.labels)} labels, from 0."
            )
        result = np.full(len(column.null), None, dtype=object)
        result[present] = np.array(self.labels, dtype=object)[positions]
        return Column(result, column.null)


@dataclass(frozen=True)
class OneHotEncoderModel(FeatureStage):
    """A vector with 1 at the index of the category, of ``sizes`` categories; ``drop_last`` gives the last one no place.

    With ``keep``, other indices are a category of their own, after the last.
    """

    sizes: tuple[int, ...] = ()
    keep: bool = False
    drop_last: bool = True

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        keep, drop = saved.params["handleInvalid"] == "keep", bool(saved.params["dropLast"])
        sizes = tuple(saved.data["categorySizes"])
        return {"sizes": sizes, "keep": keep, "drop_last": drop, "width": sum(sizes) + len(sizes)}

    def _output(self, at: int, name: str, column: Column) -> Column:
        size, index = self.sizes[at], self.numbers(name, column)
        known = (index >= 0) & (index < size)
        wrong = index[~known & ~column.null]
        if len(wrong) and not self.keep:
            raise InvalidInput(
                f"{self}: the column {name!r} has {shown(wrong)}; expected an index of one of the {size} categories, "
                f"from 0. Leave these rows out, or {_KEEP}."
            )
        place = np.where(known, np.nan_to_num(index), size).astype(np.int64)
        width = size + self.keep - self.drop_last
        vectors = np.zeros((len(index), width))
        rows = np.flatnonzero(~column.null & (place < width))
        vectors[rows, place[rows]] = 1.0
        return Column(vectors, column.null)
