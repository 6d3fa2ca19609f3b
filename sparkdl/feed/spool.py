"""A partition on the executor's own disk, as memory-mapped tensors.

Each Arrow batch is decoded and appended to one file per column. The files have no name from the moment they are
open, so a killed process leaves nothing behind, and they are mapped rather than read, so a partition may be larger
than memory. Shuffles deliver rows in any order; the order of the row ids is kept beside the tensors as an index, so
that the rows themselves are written once and never moved.

The order stops being the same between attempts where the ids themselves are not: ``monotonically_increasing_id``
follows the partitioning of the input, which must be deterministic.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import Column, Columns
from sparkdl.feed.decode import decode, row_dtype

_CHUNK = 1 << 20  # rows handled at a time where a whole column would be too much memory


class Spool:
    """Collects the batches of one partition.

    Args:
        columns: which columns are kept.
        directory: where the files lie; None for the system's temporary folder.
    """

    def __init__(self, columns: Columns, *, directory: str | None = None) -> None:
        self.rows = 0
        numbers = (columns.weight, columns.validation, columns.row_id)
        single = {column.name for column in numbers if column is not None}  # one number a row, never an array
        self._files = {
            column.name: _ColumnFile(replace(column, shape=()) if column.name in single else column, directory)
            for column in columns
        }
        self._columns = columns
        self._directory = directory

    def append(self, batch: pa.RecordBatch) -> None:
        """Decode a batch and write it behind the others.

        Raises:
            InvalidInput: the batch holds something that cannot become a tensor.
        """
        for file in self._files.values():
            array = batch.column(file.column.name)
            if batch.num_rows:
                file.write(decode(array, file.column, floating=self._columns.floating))
            elif file.dtype is None:
                file.dtype = row_dtype(array.type, file.column, floating=self._columns.floating)
        self.rows += batch.num_rows

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Column name -> dtype name and shape of a row, for the columns of which a row has been seen."""
        return {
            name: (file.dtype.name, file.shape)
            for name, file in self._files.items()
            if file.dtype is not None and file.shape is not None
        }

    def seal(self, layout: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
        """Map the files and give one tensor ``[rows, *shape]`` per column.

        Args:
            layout: what the members agreed on; it gives an empty part the shapes of the others.
        """
        sealed = {name: file.map(self.rows, layout.get(name)) for name, file in self._files.items()}
        self._files = {}
        return sealed

    def order(self, row_ids: Tensor) -> Tensor | None:
        """The index, int32 or int64 ``[rows]`` and file-backed, that sorts the rows by id; None if they are sorted.

        Raises:
            InvalidInput: two rows have the same id.
        """
        ids = row_ids.numpy()
        if _increasing(ids):
            return None
        order = np.argsort(ids)
        _refuse_duplicates(ids, order, cast(Column, self._columns.row_id))
        narrow = np.int32 if len(ids) <= np.iinfo(np.int32).max else np.int64
        file = _ColumnFile(Column("order"), self._directory)
        for first in range(0, len(order), _CHUNK):
            file.write(order[first : first + _CHUNK].astype(narrow))
        return file.map(len(order), None)


class _ColumnFile:
    """One column's unlinked file; rows are appended, then mapped."""

    def __init__(self, column: Column, directory: str | None) -> None:
        self.column = column
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] | None = None
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115

    def write(self, rows: npt.NDArray[Any]) -> None:
        if self.shape is None:
            self.dtype, self.shape = rows.dtype, rows.shape[1:]
        elif (rows.dtype, rows.shape[1:]) != (self.dtype, self.shape):
            raise InvalidInput(
                f"column {self.column.name!r} has rows of {self.dtype} and shape {self.shape}, and of {rows.dtype} and "
                f"shape {rows.shape[1:]}; expected one dtype and shape for all rows."
            )
        left = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        while left:  # a single write may take less than it was given
            left = left[self._file.write(left) :]

    def map(self, rows: int, layout: tuple[str, tuple[int, ...]] | None) -> Tensor:
        name, shape = layout or (str(self.dtype or "float32"), self.shape or ())
        dtype = cast(torch.dtype, getattr(torch, np.dtype(name).name))
        with self._file as file:
            size = rows * math.prod(shape) * np.dtype(name).itemsize
            if not size:
                return torch.empty((rows, *shape), dtype=dtype)
            # A private mapping: the model may write to a batch's memory without changing what the next epoch reads.
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=dtype).view(rows, *shape)


def _increasing(ids: npt.NDArray[Any]) -> bool:
    starts = range(0, max(len(ids) - 1, 0), _CHUNK)
    chunks = (ids[start : start + _CHUNK + 1] for start in starts)
    return all(bool((chunk[1:] > chunk[:-1]).all()) for chunk in chunks)  # a difference might not fit into the dtype


def _refuse_duplicates(ids: npt.NDArray[Any], order: npt.NDArray[Any], column: Column) -> None:
    for first in range(0, len(order), _CHUNK):
        ordered = ids[order[first : first + _CHUNK + 1]]
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(same):
            raise InvalidInput(
                f"the row id column {column.name!r} holds {int(ordered[same[0]])} more than once in one part; "
                "expected ids that are unique in the data set."
            )
