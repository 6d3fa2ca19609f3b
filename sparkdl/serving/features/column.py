"""Columns as numpy arrays: numbers, decimals, strings, or vectors, and which rows are null."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from sparkdl.errors import InvalidInput

Array = npt.NDArray[Any]
_SHOWN = 3  # values in a message


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        values: ``[rows]`` of numbers, booleans, ``Decimal``, strings or arrays; vectors are float64 ``[rows, width]``.
        null: bool ``[rows]``; the values of these rows have no meaning.
    """

    values: Array
    null: Array

    @staticmethod
    def full(values: Array) -> Column:
        """A column without nulls."""
        return Column(values, np.zeros(len(values), dtype=bool))

    @staticmethod
    def of(array: pa.Array) -> Column:
        """Read an Arrow array."""
        null = array.is_null().to_numpy(zero_copy_only=False)
        array = array.cast(pa.float64()) if pa.types.is_null(array.type) else array
        if pa.types.is_primitive(array.type) or pa.types.is_decimal(array.type):
            array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
        return Column(array.to_numpy(zero_copy_only=False), null)

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers or booleans."""
        decimals = any(isinstance(value, Decimal) for value in self.values[:1])
        return self.values.ndim == 1 and (decimals or self.values.dtype.kind in "biuf")

    def numbers(self) -> Array:
        """The values as float64 ``[rows]``, NaN where null; raises ``InvalidInput`` if they are no numbers."""
        if not self.is_number:
            raise InvalidInput(f"it holds {self.kind}; expected numbers.")
        return np.where(self.null, np.nan, self.values.astype(np.float64))

    def vectors(self) -> Array:
        """The values as float64 ``[rows, width]``, zeros where null; raises ``InvalidInput`` if they are none."""
        if self.values.ndim == 2:
            return self.values.astype(np.float64, copy=False)
        try:
            stacked = np.stack([np.asarray(value, dtype=np.float64) for value in self.values[~self.null]])
            _, width = stacked.shape
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"it holds {self.kind}; expected arrays of numbers of one length.") from error
        result = np.zeros((len(self.values), width))
        result[~self.null] = stacked
        return result

    def categories(self) -> tuple[Array, Array]:
        """The distinct values that are no nulls, and for each row without null the index of its value.

        Raises:
            InvalidInput: the values are neither strings nor numbers nor booleans.
        """
        present = self.values[~self.null]
        if not self.is_number and not all(isinstance(value, str) for value in present):
            raise InvalidInput(f"it holds {self.kind}; expected strings or numbers.")
        # By their bits, for 0.0 and -0.0 differ as texts.
        bits = present.view(f"i{present.dtype.itemsize}") if present.dtype.kind == "f" else present
        codes, distinct = pd.factorize(bits, use_na_sentinel=False)
        return distinct.view(present.dtype), codes

    @property
    def kind(self) -> str:
        """The kind of values, for a message."""
        if self.values.ndim == 2:
            return "vectors"
        if self.values.dtype != object:
            return str(self.values.dtype)
        return " and ".join(sorted({type(value).__name__ for value in self.values[~self.null]})) or "nulls"

    def items(self) -> list[Any]:
        """The values in rows: None where null, vectors as float64 arrays."""
        values: list[Any] = list(self.values) if self.values.ndim == 2 else self.values.tolist()
        return [None if null else value for value, null in zip(values, self.null.tolist(), strict=True)]


def shown(values: Array) -> str:
    """The first distinct values, for a message."""
    distinct = list(dict.fromkeys(values.tolist()))
    return ", ".join(map(repr, distinct[:_SHOWN])) + (" and others" if len(distinct) > _SHOWN else "")


def texts(values: Array) -> list[str]:
    """The texts that Spark hashes and compares: values as Java's ``toString`` writes them, and strings as they are.

    Java before 19 writes a few numbers with one digit more than needed; this is the form of Java 19 and later.
    """
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if values.dtype.kind == "f":
        return [_floating(value) for value in values]
    return [str(value) for value in values.tolist()]


def _floating(value: Any) -> str:
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, unique=True, trim="0")
    mantissa, _, exponent = np.format_float_scientific(value, unique=True, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"
