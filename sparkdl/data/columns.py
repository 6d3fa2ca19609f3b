"""Columns and the tensors that they become.

A column becomes one tensor ``[rows, *shape]``: a number becomes ``[rows]``, an array of fixed length ``k`` becomes
``[rows, k]``, an array of arrays ``[rows, j, k]`` and so on. Floating-point columns take the run's dtype. The model
receives 16 and 32 bit integers as int64; 8 bit integers and booleans keep their type. Arrays of different lengths and
binary columns need an ``InputColumn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pyarrow as pa

from sparkdl.data.batch import DTYPES
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Natural, one_of, within

RAW = (
    'Say what its bytes are, as InputColumn(name, "uint8", shape=(28, 28)), or give a function that reads them, as '
    "InputColumn(name, decode=function)"
)
_EXPECTED = "expected numbers, booleans, or arrays of them"
HASHED = "strings, whole numbers, booleans, dates, or arrays of them"
"""What a hashed column may have."""
_MOST_NAMES = 20  # in a message, which must fit on a screen


@dataclass(frozen=True)
class InputColumn(CheckedFields):
    """A column and the tensor that it becomes.

    Attributes:
        name: the column's name.
        dtype: the tensor's dtype by name (``"float32"``, ``"int64"``, ...); default: by the rule above.
        shape: shape of one row, or of one value of a ragged column; default: taken from the data. With ``dtype``, it
            describes binary values: little-endian numbers in row-major order.
        ragged: for arrays of different lengths; default: one length. ``"offsets"`` gives ``forward()`` two arguments:
            values ``[total]`` and int64 offsets ``[rows]``, as ``torch.nn.EmbeddingBag`` takes them. ``"padded"`` gives
            values ``[rows, longest of the batch]`` and a bool mask of the same shape, True at values.
        padding: fill value of short rows if ``ragged`` is ``"padded"``; default 0.
        decode: ``decode(bytes)`` converts a binary value to an array, of one shape and dtype for all rows; runs on
            executors; default: none.
        hash: for strings, whole numbers, booleans, dates, and arrays of them: each value becomes an id from 0 to
            ``hash - 1``, SQL's ``pmod(hash(name, value), hash)``. Nulls have an id of their own. Default: no hash.
        hash_as: the name in the hash; default: the column's. Columns with the same one have the same ids.

    Raises:
        InvalidInput: the fields contradict one another.
    """

    name: str
    dtype: Annotated[str, one_of(DTYPES)] | None = None
    shape: tuple[Natural, ...] | None = None
    ragged: Literal["offsets", "padded"] | None = None
    padding: float = 0
    decode: Callable[[bytes], Any] | None = None
    hash: Annotated[int, within(1, (1 << 31) - 1)] | None = None
    hash_as: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.shape, Sequence):
            object.__setattr__(self, "shape", tuple(self.shape))
        super().__post_init__()
        if self.padding != 0 and self.ragged != "padded":
            raise InvalidInput(f"column {self.name!r} has padding={self.padding!r}, which only ragged='padded' has.")
        if self.padding != int(self.padding) and self.dtype is not None and not self.dtype.startswith("float"):
            raise InvalidInput(f"column {self.name!r} has padding={self.padding!r}; expected a value of {self.dtype}.")
        if self.decode is not None and self.ragged:
            raise InvalidInput(f"column {self.name!r} has decode and ragged={self.ragged!r}; expected one of them.")
        if self.hash is None and self.hash_as is not None:
            raise InvalidInput(f"column {self.name!r} has hash_as={self.hash_as!r}; expected hash, the number of ids.")
        if self.hash is not None and (self.decode is not None or self.dtype not in (None, "int32", "int64")):
            raise InvalidInput(f"column {self.name!r} has hash={self.hash}; expected no decode, and no other dtype.")


@dataclass(frozen=True)
class Columns(CheckedFields):
    """The columns of a run by role.

    Attributes:
        inputs: one per argument of ``forward()``, in order; a ragged column gives two arguments.
        target: the label; several columns of one number per row become ``[rows, columns]``; None if the inputs are the
            target.
        weight: a number per row, at least 0: the row's weight in the loss; default: none.
        validation: a boolean per row; True marks a validation row; default: none.
        row_id: an integer per row, unique in the data set, that fixes the rows' order; default: order of arrival.
        floating: dtype of floating-point columns without a dtype of their own.
        client: an integer per row that identifies its client, for training by client; default: none.
    """

    inputs: tuple[InputColumn, ...]
    target: InputColumn | tuple[InputColumn, ...] | None = None
    weight: InputColumn | None = None
    validation: InputColumn | None = None
    row_id: InputColumn | None = None
    floating: str = "float32"
    client: InputColumn | None = None

    @staticmethod
    def of(columns: Columns | Sequence[str] | None, names: Sequence[str]) -> Columns:
        """Columns from a list of input names; None takes every column of ``names``."""
        if isinstance(columns, Columns):
            return columns
        if isinstance(columns, str):
            raise InvalidInput(f"columns is the string {columns!r}; expected a list of names or sparkdl.data.Columns.")
        return Columns(inputs=tuple(InputColumn(name) for name in (names if columns is None else columns)))

    @property
    def targets(self) -> tuple[InputColumn, ...]:
        """The label columns: none, one or several."""
        if self.target is None or isinstance(self.target, InputColumn):
            return () if self.target is None else (self.target,)
        return tuple(replace(column, dtype=column.dtype or self.floating, shape=()) for column in self.target)

    @property
    def others(self) -> tuple[InputColumn, ...]:
        """The columns that are no inputs, in the order of the fields."""
        single = (self.weight, self.validation, self.row_id, self.client)
        return (*self.targets, *(column for column in single if column is not None))

    def of_batches(self) -> list[str]:
        """The names of the columns that batches have: inputs, targets and the weight."""
        return [column.name for column in (*self.inputs, *self.targets, self.weight) if column]

    def __iter__(self) -> Iterator[InputColumn]:
        """Every column once, in the order of the fields; several uses of a column are merged.

        Raises:
            InvalidInput: two uses of a column need different dtypes or shapes, or a column that is no input is ragged.
        """
        # An input without a dtype keeps the column's own, which the other uses convert.
        free = {column.name for column in self.inputs if column.dtype is None}
        others = [replace(column, dtype=None) if column.name in free else column for column in self.others]
        merged: dict[str, InputColumn] = {}
        for column in (*self.inputs, *others):
            merged[column.name] = _merge(merged.get(column.name, column), column)
        for column in self.others:
            if merged[column.name].ragged is not None:
                raise InvalidInput(
                    f"column {column.name!r} is ragged; expected one length, since only input columns can be ragged. "
                    "Select the column a second time under another name, with one length."
                )
            if merged[column.name].hash is not None:
                raise InvalidInput(
                    f"column {column.name!r} has hash, and is no input alone; select it a second time under another "
                    "name, since only input columns are hashed."
                )
        return iter(merged.values())

    def check_fractions(self, fractions: Callable[[str], bool]) -> None:
        """Raise InvalidInput if an input column with fractions is also a class label or an id, which are integers.

        ``fractions`` returns whether the type of a column has fractions.
        """
        free = {column.name for column in self.inputs if column.dtype is None}
        for column in self.others:
            if column.dtype == "int64" and column.name in free and fractions(column.name):
                raise InvalidInput(
                    f"column {column.name!r} is an input of type {self.floating}, and a class label or an id of type "
                    "int64; select it a second time under another name."
                )

    def check(self, schema: pa.Schema) -> None:
        """Raise InvalidInput if a column is missing, ambiguous, or of a type that cannot become a tensor."""
        for column in self:
            count = schema.names.count(column.name)
            if count != 1:
                number = f"are {count} columns" if count else "is no column"
                raise InvalidInput(f"there {number} {column.name!r}; the data has {listed(schema.names)}.")
            kind = schema.field(column.name).type
            reason = _refusal(kind, column)
            if reason is not None:
                raise InvalidInput(f"column {column.name!r} has type {str(kind)[:200]}; {reason}")
        self.check_fractions(lambda name: pa.types.is_floating(schema.field(name).type))


def _merge(one: InputColumn, two: InputColumn) -> InputColumn:
    fields: dict[str, Any] = {}
    for name in ("dtype", "shape", "ragged", "decode", "hash", "hash_as"):
        first, second = getattr(one, name), getattr(two, name)
        if first is not None and second is not None and first != second:
            raise InvalidInput(
                f"column {one.name!r} is used twice, with {name}={first!r} and with {name}={second!r}; expected one "
                f"{name}. Select it a second time under another name."
            )
        fields[name] = second if first is None else first
    if one.ragged and two.ragged and one.padding != two.padding:
        raise InvalidInput(f"column {one.name!r} is used twice, with padding {one.padding} and {two.padding}.")
    return InputColumn(one.name, **fields, padding=one.padding if one.ragged else two.padding)


def described(
    names: list[str], columns: list[InputColumn], label: str | list[str] | None = None
) -> tuple[InputColumn, ...]:
    """The input columns ``names`` as ``columns`` describe them; raises InvalidInput if these describe others."""
    by_name, labels = {column.name: column for column in columns}, {label} if isinstance(label, str) else set()
    if not by_name.keys() <= {*names} | labels or len(by_name) < len(columns):
        raise InvalidInput(
            f"columnSpecs describes {listed([column.name for column in columns])}; expected each column once, and "
            f"only the label column or input columns, which are {listed(names)}."
        )
    return tuple(by_name.get(name, InputColumn(name)) for name in names)


def check_one_length(columns: Sequence[InputColumn]) -> None:
    """Raise InvalidInput if an input column is ragged, for a model that predicts a class for each token or pixel."""
    ragged = [column.name for column in columns if column.ragged is not None]
    if ragged:
        raise InvalidInput(
            f"column {ragged[0]!r} is ragged, and the model predicts a class for each token; expected rows of one "
            "length. Pad short rows, and their labels by the loss's ignore_index, such as -100."
        )


def listed(names: Sequence[str]) -> str:
    """Quote names for a message, at most twenty of them."""
    text = ", ".join(map(repr, names[:_MOST_NAMES]))
    return text if len(names) <= _MOST_NAMES else f"{text} and {len(names) - _MOST_NAMES} more"


def _refusal(kind: pa.DataType, column: InputColumn) -> str | None:
    if is_binary(kind):
        known = column.decode is not None or (column.dtype is not None and column.shape is not None)
        return None if known and column.ragged is None else f"{_EXPECTED}. {RAW}."
    if column.decode is not None:
        return "expected binary values for its decode function."
    if column.ragged is not None and not is_list(kind):
        return "expected arrays, since it is ragged."
    if column.hash is not None:
        element = element_type(kind)
        exact = not (pa.types.is_floating(element) or pa.types.is_decimal(element) or pa.types.is_timestamp(element))
        return None if exact else f"expected {HASHED}, since it has hash."
    cure = _advice(element_type(kind))
    return None if cure is None else f"{_EXPECTED}. {cure}"


def element_type(kind: pa.DataType) -> pa.DataType:
    """The type of the numbers in an array type of any depth."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's list types."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether a type is binary, large binary or fixed-size binary."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _advice(element: pa.DataType) -> str | None:
    if pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_boolean(element):
        return None
    if pa.types.is_temporal(element):
        return "Say what number it is to be, for example seconds since 1970 or days since a date of your choice."
    if pa.types.is_string(element) or pa.types.is_large_string(element) or pa.types.is_dictionary(element):
        return "Turn strings into numbers first, each into its index among those there are."
    if pa.types.is_struct(element) or pa.types.is_map(element):
        return "Select its fields as columns."
    return "Cast it to a number first."
