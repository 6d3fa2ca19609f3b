"""Arrow types that can become tensors, and advice for the others."""

from __future__ import annotations

import pyarrow as pa

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


def advice(element: pa.DataType) -> str | None:
    """What to do with a type that is neither a number nor a boolean; None if it is one."""
    if pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_boolean(element):
        return None
    if pa.types.is_temporal(element):
        return "Say what number it is to be, for example seconds since 1970 or days since a date of your choice."
    if pa.types.is_string(element) or pa.types.is_large_string(element) or pa.types.is_dictionary(element):
        return "Turn strings into numbers first, each into its index among those there are."
    if pa.types.is_struct(element) or pa.types.is_map(element):
        return "Select its fields as columns."
    return "Cast it to a number first."
