"""Arrow types that can become tensors, and advice for the others."""

from __future__ import annotations

import pyarrow as pa

_WANTED = "expected numbers, booleans, or arrays of them"

RAW = (
    'Say what its bytes are, as InputColumn(name, "uint8", shape=(28, 28)), or give a function that reads them, as '
    "InputColumn(name, decode=function)"
)


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


def refusal(kind: pa.DataType, *, described: bool, decoded: bool, ragged: bool) -> str | None:
    """Reason why a column of this type cannot become a tensor, with advice; None if it can.

    Args:
        kind: the column's Arrow type.
        described: whether the column has a dtype and a shape of its own.
        decoded: whether the column has a decode function.
        ragged: whether the column is declared ragged.
    """
    if is_binary(kind):
        return None if (described or decoded) and not ragged else f"{_WANTED}. {RAW}."
    if decoded:
        return "expected binary values for its decode function."
    if ragged and not is_list(kind):
        return "expected arrays, since it is ragged."
    element = element_type(kind)
    if pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_boolean(element):
        return None
    return f"{_WANTED}. {_advice(element)}"


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_temporal(kind):
        return "Say what number it is to be, for example seconds since 1970 or days since a date of your choice."
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return "Turn strings into numbers first, each into its index among those there are."
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "Select its fields as columns."
    return "Cast it to a number first."
