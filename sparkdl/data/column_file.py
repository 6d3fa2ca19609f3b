"""One column of a partition in unlinked files that are appended to and then mapped."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.data.arrow import decode, decode_ragged, row_dtype
from sparkdl.data.batch import DTYPES, Ragged
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
        """Decode and append rows; without rows only record their dtype."""
        if len(array):
            self.write(decode(array, self.column, floating=floating))
        elif self.dtype is None:
            self.dtype = row_dtype(array.type, self.column, floating=floating)

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append rows ``[rows, *shape]``, all of one dtype and shape."""
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
        """Map ``rows`` rows of a layout, None for the file's own; the file is deleted with the last reference."""
        name, shape = layout or (str(self.dtype or "float32"), self.shape or ())
        with self._file as file:
            return mapped(cast(BinaryIO, file), DTYPES[name], (rows, *shape))


class RaggedFile(ColumnFile):
    """A column of arrays of different lengths: one file of values, one of the bounds between rows."""

    def __init__(self, column: InputColumn, directory: str | None) -> None:
        super().__init__(column, directory)
        self._bounds = ColumnFile(InputColumn(column.name), directory)
        self._bounds.write(np.zeros(1, np.int64))
        self._total = 0

    def append(self, array: pa.Array, floating: str) -> None:
        """Decode and append rows; without values only record their dtype."""
        values, bounds = decode_ragged(array, self.column, floating=floating)
        if len(values):
            self.write(values)
        elif self.dtype is None:
            self.dtype = row_dtype(array.type, self.column, floating=floating)
        if len(array):
            self._bounds.write(bounds[1:] + self._total)
        self._total += len(values)

    def map(self, rows: int, layout: Layout | None) -> Ragged:  # type: ignore[override]
        """The rows as mapped ragged rows."""
        layout = layout or (str(self.dtype or "float32"), self.column.shape or ())
        padding = self.column.padding if self.column.ragged == "padded" else None
        return Ragged(super().map(self._total, layout), self._bounds.map(rows + 1, None), padding)


def mapped(file: BinaryIO, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Map a file as a tensor; writes to the tensor do not reach the file, and later mappings read the original."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY), dtype=dtype).view(shape)


def common_layout(layouts: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, Layout]:
    """The layout of every column, from shards' indices and their layouts in JSON; raises InvalidInput if two differ."""
    common: dict[str, tuple[int, Layout]] = {}
    for index, columns in layouts:
        for name, (dtype, shape) in columns.items():
            layout = dtype, tuple(shape)
            first, expected = common.setdefault(name, (index, layout))
            if expected != layout:
                raise InvalidInput(
                    f"column {name!r} has rows of {expected} in shard {first} and of {layout} in shard {index}."
                )
    return {name: layout for name, (_, layout) in common.items()}
