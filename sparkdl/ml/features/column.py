"""Columns as numpy arrays: numbers, strings, or vectors, and which rows are null."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sparkdl.errors import InvalidInput

Array = npt.NDArray[Any]
_SHOWN = 3  # values in a message


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        values: ``[rows]`` of numbers, booleans, strings or arrays; vectors are float64 ``[rows, width]``.
        null: bool ``[rows]``; the values of these rows have no meaning.
    """

    values: Array
    null: Array

    @staticmethod
    def full(values: Array) -> Column:
        """A column without nulls."""
        return Column(values, np.zeros(len(values), dtype=bool))

    @staticmethod
    def of(values: Any, name: str) -> Column:
        """Read a pandas Series or a sequence; missing values are nulls, and NaN is one, as pandas has no other.

        Raises:
            InvalidInput: the values have several types.
        """
        series = values if isinstance(values, pd.Series) else pd.Series(list(values))
        null = series.isna().to_numpy(dtype=bool)
        kind = pd.api.types.infer_dtype(series, skipna=True)
        numbers = {"boolean": np.bool_, "integer": np.int64, "floating": np.float64, "mixed-integer-float": np.float64}
        if isinstance(series.dtype, np.dtype) and series.dtype != object:
            return Column(series.to_numpy(), null)
        if kind in numbers:
            own = getattr(series.dtype, "numpy_dtype", None)  # of a nullable type, such as Int32
            blank = False if kind == "boolean" else 0
            return Column(series.where(~null, blank).to_numpy(dtype=own or numbers[kind]), null)
        if kind == "empty":  # only nulls
            return Column(np.full(len(series), np.nan), null)
        if kind == "mixed-integer":
            raise InvalidInput(f"column {name!r} has numbers and other values; expected one type.")
        return Column(series.to_numpy(dtype=object), null)

    def numbers(self) -> Array:
        """The values as float64 ``[rows]``; NaN where null.

        Raises:
            InvalidInput: the values are no numbers.
        """
        if self.values.ndim > 1 or self.values.dtype.kind not in "biuf":
            raise InvalidInput(f"it holds {self.kind}; expected numbers.")
        return np.where(self.null, np.nan, self.values.astype(np.float64))

    def vectors(self) -> Array:
        """The values as float64 ``[rows, width]``; zeros where null.

        Raises:
            InvalidInput: the values are no vectors, or of several lengths.
        """
        if self.values.ndim == 2:
            return self.values.astype(np.float64, copy=False)
        present = self.values[~self.null]
        try:
            stacked = np.stack([np.asarray(value, dtype=np.float64) for value in present])
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"it holds {self.kind}; expected arrays of numbers of one length.") from error
        if stacked.ndim != 2:
            raise InvalidInput(f"it holds {self.kind}; expected arrays of numbers of one length.")
        result = np.zeros((len(self.values), stacked.shape[1]))
        result[~self.null] = stacked
        return result

    def categories(self) -> tuple[Array, Array]:
        """The distinct values that are no nulls, and for each row without null the index of its value.

        Raises:
            InvalidInput: the values are neither strings nor numbers nor booleans.
        """
        present = self.values[~self.null]
        if self.values.ndim == 1 and self.values.dtype == object:
            plain = all(isinstance(value, str) for value in present)
        else:
            plain = self.values.ndim == 1 and self.values.dtype.kind in "biuf"
        if not plain:
            raise InvalidInput(f"it holds {self.kind}; expected strings or numbers.")
        codes, distinct = pd.factorize(present, use_na_sentinel=False)
        return distinct, codes

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
