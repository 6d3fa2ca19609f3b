"""Which columns become which tensors.

A column becomes one tensor ``[rows, *shape]``: a number becomes ``[rows]``, an array of fixed length ``k`` becomes
``[rows, k]``, an array of arrays ``[rows, j, k]`` and so on. Floating-point columns take the run's dtype, 16 and 32
bit integers arrive in the model as int64, and 8 bit integers and booleans stay what they are. Arrays of several
lengths and binary columns have to be described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from sparkdl.data.arrow_types import refusal
from sparkdl.data.batch import DTYPES
from sparkdl.errors import InvalidInput

_MOST_NAMES = 20  # in a message


@dataclass(frozen=True)
class Column:
    """One column and the tensor it becomes.

    Attributes:
        name: the column's name.
        dtype: the tensor's dtype by name (``"float32"``, ``"int64"``, ...), or None for the rule above.
        shape: the shape of one row, or None to take it from the data; of one value where the column is ragged. With a
            dtype it says what the bytes of a binary column are: little-endian numbers in row-major order.
        ragged: None for arrays of one length. ``"offsets"`` makes arrays of several lengths two arguments of
            ``forward()``: values ``[total]`` and int64 offsets ``[rows]``, as ``torch.nn.EmbeddingBag`` takes them;
            ``"padded"`` makes them values ``[rows, longest of the batch]`` and a bool mask of the same shape, True
            where there is a value.
        padding: what fills up the short rows of a column that is ``"padded"``; default 0.
        decode: ``decode(bytes)`` returns a binary value as an array, of one shape and dtype for all rows. It is
            called on executors.

    Raises:
        InvalidInput: the description contradicts itself.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    ragged: Literal["offsets", "padded"] | None = None
    padding: float = 0
    decode: Callable[[bytes], Any] | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InvalidInput(f"column {self.name!r} has dtype {self.dtype!r}; expected one of {', '.join(DTYPES)}.")
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.ragged not in (None, "offsets", "padded"):
            raise InvalidInput(f"column {self.name!r} has ragged={self.ragged!r}; expected 'offsets' or 'padded'.")
        if self.padding != 0 and self.ragged != "padded":
            raise InvalidInput(f"column {self.name!r} has padding={self.padding!r}, which only ragged='padded' has.")
        if self.padding != int(self.padding) and self.dtype is not None and not self.dtype.startswith("float"):
            raise InvalidInput(f"column {self.name!r} has padding={self.padding!r}; expected a value of {self.dtype}.")
        if self.decode is not None and (self.ragged or not callable(self.decode)):
            raise InvalidInput(
                f"column {self.name!r} has decode={self.decode!r} and ragged={self.ragged!r}; expected a function "
                "decode(bytes) that returns an array of one shape for all rows."
            )


@dataclass(frozen=True)
class Columns:
    """The columns of a run by what they are for.

    Attributes:
        inputs: one for each argument of ``forward()``, in order; a ragged column is two arguments.
        target: the label; several columns of one number a row each, which become ``[rows, columns]``; or None where
            the target is the inputs.
        weight: a number per row, at least 0; how much the row counts in the loss.
        validation: a boolean per row; True keeps the row out of training.
        row_id: an integer per row, unique in the data set, that fixes the order of rows; None: the order in which
            they arrive.
        floating: the dtype of floating-point columns without a dtype of their own.
        client: an integer per row, whose rows it is, for what is trained client by client.
    """

    inputs: tuple[Column, ...]
    target: Column | tuple[Column, ...] | None = None
    weight: Column | None = None
    validation: Column | None = None
    row_id: Column | None = None
    floating: str = "float32"
    client: Column | None = None

    @staticmethod
    def of(columns: Columns | Sequence[str] | None, names: Sequence[str]) -> Columns:
        """Columns from a plain list of input names; None takes every column of ``names``."""
        if isinstance(columns, Columns):
            return columns
        if isinstance(columns, str):
            raise InvalidInput(f"columns is the string {columns!r}; expected a list of names or sparkdl.data.Columns.")
        return Columns(inputs=tuple(Column(name) for name in (names if columns is None else columns)))

    @property
    def targets(self) -> tuple[Column, ...]:
        """The label columns: none, one or several."""
        if self.target is None or isinstance(self.target, Column):
            return () if self.target is None else (self.target,)
        return tuple(replace(column, dtype=column.dtype or self.floating, shape=()) for column in self.target)

    def __iter__(self) -> Iterator[Column]:
        """Every column once, in the order of the fields; a column used twice comes once, with what either use asks for.

        Raises:
            InvalidInput: two uses of a column ask for different dtypes or shapes.
        """
        single = (self.weight, self.validation, self.row_id, self.client)
        others = (*self.targets, *(column for column in single if column is not None))
        merged: dict[str, Column] = {}
        for column in (*self.inputs, *others):
            merged[column.name] = _merge(merged.get(column.name, column), column)
        for column in others:
            if merged[column.name].ragged is not None:
                raise InvalidInput(
                    f"column {column.name!r} is ragged; expected that of input columns only, and the same rows as a "
                    "label under another name, all of one length."
                )
        return iter(merged.values())

    def check(self, schema: pa.Schema) -> None:
        """Check every column against an Arrow schema.

        Raises:
            InvalidInput: a column is missing, there more than once, or of a type that cannot become a tensor.
        """
        for column in self:
            found = schema.names.count(column.name)
            if found != 1:
                raise InvalidInput(
                    f"there {'is no column' if not found else f'are {found} columns'} {column.name!r}; the data has "
                    f"{listed(schema.names)}."
                )
            kind = schema.field(column.name).type
            wrong = refusal(
                kind,
                described=column.dtype is not None and column.shape is not None,
                decoded=column.decode is not None,
                ragged=column.ragged is not None,
            )
            if wrong is not None:
                raise InvalidInput(f"column {column.name!r} has type {str(kind)[:200]}; {wrong}")


def _merge(one: Column, other: Column) -> Column:
    found: dict[str, Any] = {}
    for name in ("dtype", "shape", "ragged", "decode"):
        first, second = getattr(one, name), getattr(other, name)
        if first is not None and second is not None and first != second:
            raise InvalidInput(
                f"column {one.name!r} is used twice, with {name}={first!r} and with {name}={second!r}; expected one "
                f"{name}. Select it a second time under another name."
            )
        found[name] = second if first is None else first
    if one.ragged and other.ragged and one.padding != other.padding:
        raise InvalidInput(f"column {one.name!r} is used twice, with padding {one.padding} and {other.padding}.")
    return Column(one.name, **found, padding=one.padding if one.ragged else other.padding)


def listed(names: Sequence[str]) -> str:
    """Names for a message, which a table of a thousand columns must not push off the screen."""
    text = ", ".join(map(repr, names[:_MOST_NAMES]))
    return text if len(names) <= _MOST_NAMES else f"{text} and {len(names) - _MOST_NAMES} more"
