"""A stage without Spark: columns in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from sparkdl.errors import InvalidInput
from sparkdl.serving.features.column import Array, Column
from sparkdl.serving.features.saved_stage import SavedStage

Columns = Mapping[str, Column]
Read = TypeVar("Read")
Kind = Literal["double", "vector", "string", "same"]
"""Of output columns; ``"same"``: as the input columns."""


@dataclass(frozen=True)
class FeatureStage:
    """A stage of pyspark.ml.feature.

    Attributes:
        uid: of Spark's stage, for messages.
        inputs: the columns that it reads.
        outputs: the columns that it adds.
        width: the numbers that it adds to a row, if they are many.
    """

    kind: ClassVar[Kind] = "vector"

    uid: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    width: int = field(default=1, kw_only=True)

    @classmethod
    def of(cls, saved: SavedStage) -> FeatureStage:
        """Read a saved stage."""
        params = saved.params
        inputs = params.get("inputCols") or [params["inputCol"]]
        outputs = params.get("outputCols") or [params["outputCol"]]
        return cls(saved.uid, tuple(inputs), tuple(outputs), **cls._fitted(saved))

    @classmethod
    def _fitted(cls, saved: SavedStage) -> dict[str, Any]:
        raise NotImplementedError

    def transform(self, columns: Columns) -> dict[str, Column]:
        """The columns, and those that it adds; raises ``InvalidInput`` for values that Spark's stage rejects."""
        if missing := [name for name in self.inputs if name not in columns]:
            raise InvalidInput(f"{self} needs the column {missing[0]!r}; there are {', '.join(map(repr, columns))}.")
        return {**columns, **self._outputs({name: columns[name] for name in self.inputs})}

    def _outputs(self, columns: Columns) -> dict[str, Column]:
        pairs = zip(self.inputs, self.outputs, strict=True)
        return {output: self._output(at, name, columns[name]) for at, (name, output) in enumerate(pairs)}

    def _output(self, at: int, name: str, column: Column) -> Column:
        raise NotImplementedError

    def read(self, name: str, values: Callable[[], Read]) -> Read:
        """The values of an input column, with the stage and the column in an error's message."""
        try:
            return values()
        except InvalidInput as error:
            raise InvalidInput(f"{self} cannot read the column {name!r}: {error.message}") from None

    def numbers(self, name: str, column: Column) -> Array:
        """The values of an input column as float64 ``[rows]``; NaN where null."""
        return self.read(name, column.numbers)

    def vectors(self, name: str, column: Column, width: int | None = None) -> Array:
        """The values of an input column as float64 ``[rows, width]``."""
        values = self.read(name, column.vectors)
        if width is not None and values.shape[1] != width:
            raise InvalidInput(f"{self} got vectors of {values.shape[1]} numbers in {name!r}; expected {width}.")
        return values

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.uid}"
