"""A stage without Spark: columns in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from sparkdl.errors import InvalidInput
from sparkdl.ml.features.column import Array, Column
from sparkdl.ml.features.saved_stage import SavedStage

Columns = Mapping[str, Column]
Read = TypeVar("Read")
Kind = Literal["double", "vector", "string", "same"]
"""Of output columns; ``"same"``: as the input columns."""


class Stage(Protocol):
    """What a pipeline asks of a stage."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns that it adds."""

    @property
    def width(self) -> int:
        """The numbers that it adds to a row, at least 1."""

    def transform(self, columns: Columns) -> dict[str, Column]:
        """The columns, and those that it adds.

        Raises:
            InvalidInput: a column is missing, or has values that the stage rejects.
        """


@dataclass(frozen=True)
class FeatureStage:
    """A stage of pyspark.ml.feature.

    Attributes:
        uid: of Spark's stage, for messages.
        inputs: the columns that it reads.
        outputs: the columns that it adds.
    """

    kind: ClassVar[Kind] = "vector"

    uid: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, saved: SavedStage) -> FeatureStage:
        """Read a saved stage."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """The numbers that it adds to a row."""
        return len(self.outputs)

    def transform(self, columns: Columns) -> dict[str, Column]:
        """The columns, and those that it adds; raises ``InvalidInput`` for values that Spark's stage rejects."""
        return {**columns, **self.added({name: self.column(columns, name) for name in self.inputs})}

    def added(self, columns: Columns) -> dict[str, Column]:
        """The output columns; by default ``one`` computes each from the input column in its place."""
        pairs = zip(self.inputs, self.outputs, strict=True)
        return {output: self.one(at, name, columns[name]) for at, (name, output) in enumerate(pairs)}

    def one(self, at: int, name: str, column: Column) -> Column:
        """The output column at a place, from 0, of the input column of this name."""
        raise NotImplementedError

    def column(self, columns: Columns, name: str) -> Column:
        """An input column."""
        if name not in columns:
            raise InvalidInput(f"{self} needs the column {name!r}; there are {', '.join(map(repr, columns))}.")
        return columns[name]

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


def places(params: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the input and the output columns in a stage's Params."""
    if params.get("inputCols"):
        inputs = params["inputCols"]
        return tuple(inputs), tuple(params["outputCols"] if params.get("outputCols") else [params["outputCol"]])
    return (params["inputCol"],), (params["outputCol"],)
