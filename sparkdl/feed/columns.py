"""Which columns become which tensors.

A column becomes one tensor ``[rows, *shape]``: a number becomes ``[rows]``, an array of fixed length ``k`` becomes
``[rows, k]``, an array of arrays ``[rows, j, k]`` and so on. Floating-point columns take the run's dtype, 16 and 32
bit integers arrive in the model as int64, and 8 bit integers and booleans stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkdl.errors import InvalidInput
from sparkdl.tensors import DTYPES


@dataclass(frozen=True)
class Column:
    """One column and the tensor it becomes.

    Attributes:
        name: the column's name.
        dtype: the tensor's dtype by name (``"float32"``, ``"int64"``, ...), or None for the rule above.
        shape: the shape of one row, or None to take it from the data.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InvalidInput(f"column {self.name!r} has dtype {self.dtype!r}; expected one of {', '.join(DTYPES)}.")


@dataclass(frozen=True)
class Columns:
    """The columns of a run by what they are for.

    Attributes:
        inputs: one for each argument of ``forward()``, in order.
        target: the label, or None where the target is the inputs.
        weight: a number per row, at least 0; how much the row counts in the loss.
        validation: a boolean per row; True keeps the row out of training.
        row_id: an integer per row, unique in the data set, that fixes the order of rows; None: the order in which
            they arrive.
        floating: the dtype of floating-point columns without a dtype of their own.
    """

    inputs: tuple[Column, ...]
    target: Column | None = None
    weight: Column | None = None
    validation: Column | None = None
    row_id: Column | None = None
    floating: str = "float32"

    @staticmethod
    def of(columns: Columns | Sequence[str] | None, names: Sequence[str]) -> Columns:
        """Columns from a plain list of input names; None takes every column of ``names``."""
        if isinstance(columns, Columns):
            return columns
        if isinstance(columns, str):
            raise InvalidInput(f"columns is the string {columns!r}; expected a list of names or sparkdl.feed.Columns.")
        return Columns(inputs=tuple(Column(name) for name in (names if columns is None else columns)))

    def __iter__(self) -> Iterator[Column]:
        """Every column once, in the order of the fields; a column used twice comes once, with what either use asks for.

        Raises:
            InvalidInput: two uses of a column ask for different dtypes or shapes.
        """
        single = (self.target, self.weight, self.validation, self.row_id)
        merged: dict[str, Column] = {}
        for column in (*self.inputs, *(column for column in single if column is not None)):
            merged[column.name] = _merge(merged.get(column.name, column), column)
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
                    f"{', '.join(map(repr, schema.names))}."
                )
            element = element_type(schema.field(column.name).type)
            if not (pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_boolean(element)):
                raise InvalidInput(
                    f"column {column.name!r} has type {schema.field(column.name).type}; expected numbers, booleans, "
                    "or arrays of them."
                )


def _merge(one: Column, other: Column) -> Column:
    merged = Column(one.name, one.dtype or other.dtype, one.shape or other.shape)
    if (other.dtype or merged.dtype, other.shape or merged.shape) != (merged.dtype, merged.shape):
        raise InvalidInput(
            f"column {one.name!r} is used twice, as {one.dtype} of shape {one.shape} and as {other.dtype} of shape "
            f"{other.shape}; expected one dtype and shape. Select it a second time under another name."
        )
    return merged


def element_type(kind: pa.DataType) -> pa.DataType:
    """The type of the numbers inside an array type of any depth."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
