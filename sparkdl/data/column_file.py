"""One column of a partition in unlinked files that are appended to and then mapped."""

from __future__ import annotations

import math
import mmap
import tempfile
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.data.arrow import decode, decode_ragged, row_dtype
from sparkdl.data.batch import Ragged
from sparkdl.data.columns import InputColumn
from sparkdl.data.validation import RAGGED
from sparkdl.errors import InvalidInput

Layout = tuple[str, tuple[int, ...]]
"""Dtype name and shape of a row; for ragged rows, of a value."""


class ColumnFile:
    """A column whose rows have one shape; ``directory`` None puts its file in the system's temporary folder."""

    def __init__(self, column: InputColumn, directory: str | None) -> None:
        self.column = column
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] | None = None
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115

    def append(self, array: pa.Array, floating: str) -> None:
        """Decode and append rows; without rows only record their dtype. Raises what ``decode`` and ``write`` raise."""
        if len(array):
            self.write(decode(array, self.column, floating=floating))
        elif self.dtype is None:
            self.dtype = row_dtype(array.type, self.column, floating=floating)

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append rows ``[rows, *shape]``; raises InvalidInput if they differ in dtype or shape from earlier rows."""
        if self.shape is None:
            self.dtype, self.shape = rows.dtype, rows.shape[1:]
        elif (rows.dtype, rows.shape[1:]) != (self.dtype, self.shape):
            advice = f" {RAGGED}" if rows.dtype == self.dtype and len(self.shape) == 1 else ""
            raise InvalidInput(
                f"column {self.column.name!r} has rows of {self.dtype} and shape {self.shape}, and of {rows.dtype} and "
                f"shape {rows.shape[1:]}; expected one dtype and shape for all rows.{advice}"
            )
        left = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        while left:  # a single write may be partial
            left = left[self._file.write(left) :]

    def map(self, rows: int, layout: Layout | None) -> Tensor:
        """The rows as a mapped tensor; the file is deleted with its last reference.

        Args:
            rows: number of rows.
            layout: dtype and shape; None for the file's own.
        """
        name, shape = layout or (str(self.dtype or "float32"), self.shape or ())
        dtype = cast(torch.dtype, getattr(torch, np.dtype(name).name))
        with self._file as file:
            size = rows * math.prod(shape) * np.dtype(name).itemsize
            if not size:
                return torch.empty((rows, *shape), dtype=dtype)
            # A private mapping: if the model writes to a batch's memory, the next epoch still reads the original.
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=dtype).view(rows, *shape)


class RaggedFile:
    """A column of arrays of different lengths: one file of values, one of the bounds between rows."""

    def __init__(self, column: InputColumn, directory: str | None) -> None:
        self.column = column
        self._values = ColumnFile(column, directory)
        self._bounds = ColumnFile(InputColumn(column.name), directory)
        self._bounds.write(np.zeros(1, np.int64))
        self._total = 0

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The values' dtype; None without values."""
        return self._values.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one value; None without values."""
        return self._values.shape

    def append(self, array: pa.Array, floating: str) -> None:
        """Decode and append rows; raises what ``ColumnFile.append`` raises."""
        values, bounds = decode_ragged(array, self.column, floating=floating)
        if len(values):
            self._values.write(values)
        elif self.dtype is None:
            self._values.dtype = row_dtype(array.type, self.column, floating=floating)
        if len(array):
            self._bounds.write(bounds[1:] + self._total)
        self._total += len(values)

    def map(self, rows: int, layout: Layout | None) -> Ragged:
        """The rows as mapped ragged rows; takes what ``ColumnFile.map`` takes."""
        layout = layout or (str(self.dtype or "float32"), self.column.shape or ())
        padding = self.column.padding if self.column.ragged == "padded" else None
        return Ragged(self._values.map(self._total, layout), self._bounds.map(rows + 1, None), padding)
