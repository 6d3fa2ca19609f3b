"""A partition on the executor's own disk, as memory-mapped tensors.

Each Arrow batch is decoded and appended to one file per column. The files have no name from the moment they are
open, so a killed process leaves nothing behind, and they are mapped rather than read, so a partition may be larger
than memory. Shuffles deliver rows in any order; the order of the row ids is kept beside the tensors as an index, so
that the rows themselves are written once and never moved.

The order stops being the same between attempts where the ids themselves are not: ``monotonically_increasing_id``
follows the partitioning of the input, which must be deterministic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from sparkdl.data import validation
from sparkdl.data.arrow import count_faults
from sparkdl.data.batch import Input
from sparkdl.data.column_file import ColumnFile, Layout, RaggedFile
from sparkdl.data.columns import Column, Columns
from sparkdl.data.shard import Part, numbers
from sparkdl.errors import InvalidInput

_MOST = 10  # columns that an error speaks of
_CHUNK = 1 << 20  # rows handled at a time where a whole column would be too much memory


class Spool:
    """Collects the batches of one partition.

    Args:
        columns: which columns are kept.
        directory: where the files lie; None for the system's temporary folder.
        part: which part this is, for errors; None leaves that out.
    """

    def __init__(self, columns: Columns, *, directory: str | None = None, part: int | None = None) -> None:
        self.rows = 0
        numbers = (columns.weight, columns.validation, columns.row_id, columns.client)
        single = {column.name for column in numbers if column is not None}  # one number a row, never an array
        self._files = {column.name: _open(column, single, directory) for column in columns}
        self._columns = columns
        self._directory = directory
        self._place = "" if part is None else f"part {part}: "
        self._faults: dict[str, validation.Counts] = {}

    def append(self, batch: pa.RecordBatch) -> None:
        """Decode a batch and write it behind the others.

        Single values that cannot be used are counted, for ``check`` to refuse them, and such rows are not written.

        Raises:
            InvalidInput: the batch holds something else that cannot become a tensor.
        """
        for file in self._files.values():
            array = batch.column(file.column.name)
            try:
                file.append(array, self._columns.floating)
            except InvalidInput as error:
                self._take_down(file.column, array, error)
        self.rows += batch.num_rows

    def check(self) -> None:
        """Refuse a partition of which values could not be used.

        Raises:
            InvalidInput: there were nulls, NaN, infinite values or values beyond their dtype's range.
        """
        found = [validation.message(name, counts, rows=self.rows) for name, counts in self._faults.items()]
        if found:
            more = f"\nand {len(found) - _MOST} more columns." if len(found) > _MOST else ""
            raise InvalidInput(self._place + "\n".join(found[:_MOST]) + more)

    def layout(self) -> dict[str, Layout]:
        """Column name -> dtype name and shape of a row, for the columns of which a row has been seen."""
        return {
            name: (file.dtype.name, file.shape)
            for name, file in self._files.items()
            if file.dtype is not None and file.shape is not None
        }

    def part(self, index: int, rows: tuple[int, ...], layout: dict[str, Layout]) -> Part:
        """The spooled rows as a part, in the order of their ids.

        Args:
            index: which part this is, from 0.
            rows: rows of every part, by index.
            layout: what the members agreed on; it gives an empty part the shapes of the others.

        Raises:
            InvalidInput: see ``check``; or two rows have the same id.
        """
        tensors, identity = self.seal(layout), self._columns.row_id
        order = None if identity is None else self.order(numbers(tensors, identity.name))
        return Part(index, len(rows), self.rows, rows, self._columns, tensors, order)

    def seal(self, layout: dict[str, Layout]) -> dict[str, Input]:
        """Map the files and give one tensor ``[rows, *shape]`` per column, or its rows of several lengths.

        Args:
            layout: what the members agreed on; it gives an empty part the shapes of the others.

        Raises:
            InvalidInput: see ``check``.
        """
        self.check()
        sealed: dict[str, Input] = {name: file.map(self.rows, layout.get(name)) for name, file in self._files.items()}
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
        file = ColumnFile(Column("order"), self._directory)
        for first in range(0, len(order), _CHUNK):
            file.write(order[first : first + _CHUNK].astype(narrow))
        return file.map(len(order), None)

    def _take_down(self, column: Column, array: pa.Array, error: InvalidInput) -> None:
        """Count what is wrong with single values of an array, or raise what else is."""
        try:
            counts = count_faults(array, column, floating=self._columns.floating)
        except InvalidInput:  # the same error, or one that hides behind it
            counts = validation.Counts()
        if not counts:
            raise InvalidInput(self._place + error.message) from error
        self._faults[column.name] = self._faults.get(column.name, validation.Counts()) + counts


def _open(column: Column, single: set[str], directory: str | None) -> ColumnFile | RaggedFile:
    if column.ragged is not None:
        return RaggedFile(column, directory)
    return ColumnFile(replace(column, shape=()) if column.name in single else column, directory)


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
