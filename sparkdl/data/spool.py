"""A partition on the executor's local disk, as memory-mapped tensors.

Each Arrow batch is decoded and appended to one file per column. The files are unlinked as soon as they are open, so a
killed process leaves nothing behind. They are mapped, so a partition may be larger than memory. Shuffles deliver rows
in any order: an index beside the tensors keeps the order of the row ids, so rows are written once and never moved.
Attempts agree on the order only if they agree on the ids; ``monotonically_increasing_id`` follows the partitioning.
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
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard, numbers
from sparkdl.errors import InvalidInput

_MOST = 10  # columns that an error names
_CHUNK = 1 << 20  # rows processed at a time, since a whole column may exceed memory


class Spool:
    """Collects the batches of one partition in files of a folder (default: the system's); errors name the shard."""

    def __init__(self, columns: Columns, *, directory: str | None = None, shard: int | None = None) -> None:
        self.rows = 0
        roles = (columns.weight, columns.validation, columns.row_id, columns.client)
        single = {column.name for column in roles if column is not None}  # one number a row, never an array
        self._files: dict[str, ColumnFile] = {}
        for column in columns:
            kind = ColumnFile if column.ragged is None else RaggedFile
            self._files[column.name] = kind(replace(column, shape=()) if column.name in single else column, directory)
        self._columns = columns
        self._directory = directory
        self._place = "" if shard is None else f"shard {shard}: "
        self._faults: dict[str, validation.Counts] = {}

    def append(self, batch: pa.RecordBatch) -> None:
        """Decode and append a batch; invalid values are counted for ``check``, and their column is not written."""
        for file in self._files.values():
            array = batch.column(file.column.name)
            try:
                file.append(array, self._columns.floating)
            except InvalidInput as error:
                try:
                    counts = count_faults(array, file.column, floating=self._columns.floating)
                except InvalidInput:  # the same error, or a second one
                    counts = validation.Counts()
                if not counts:
                    raise InvalidInput(self._place + error.message) from error
                self._faults.setdefault(file.column.name, validation.Counts()).update(counts)
        self.rows += batch.num_rows

    def check(self) -> None:
        """Raise InvalidInput if there were nulls, NaN, infinite values or values out of their dtype's range."""
        faults = [validation.message(name, counts, rows=self.rows) for name, counts in self._faults.items()]
        if faults:
            more = f"\nand {len(faults) - _MOST} more columns." if len(faults) > _MOST else ""
            raise InvalidInput(self._place + "\n".join(faults[:_MOST]) + more)

    def layout(self) -> dict[str, Layout]:
        """Column name -> dtype name and shape of a row, for the columns of which a row has arrived."""
        return {
            name: (file.dtype.name, file.shape)
            for name, file in self._files.items()
            if file.dtype is not None and file.shape is not None
        }

    def shard(self, index: int, rows: tuple[int, ...], layout: dict[str, Layout]) -> Shard:
        """The spooled rows as a shard in the order of their ids.

        Args:
            index: index of the shard, from 0.
            rows: rows of every shard, by index.
            layout: the workers' common layout, for the dtypes and shapes of an empty shard.

        Raises:
            InvalidInput: a value is invalid, or two rows have the same id.
        """
        tensors, identity = self.seal(layout), self._columns.row_id
        order = None if identity is None else self.order(numbers(tensors, identity.name))
        return Shard(index, len(rows), self.rows, rows, self._columns, tensors, order)

    def seal(self, layout: dict[str, Layout]) -> dict[str, Input]:
        """Map each column to a tensor ``[rows, *shape]`` or ``Ragged`` rows."""
        self.check()
        sealed: dict[str, Input] = {name: file.map(self.rows, layout.get(name)) for name, file in self._files.items()}
        self._files = {}
        return sealed

    def order(self, row_ids: Tensor) -> Tensor | None:
        """The index that sorts the rows by id, int32 or int64 ``[rows]``; None if they are sorted."""
        ids = row_ids.numpy()
        if _increasing(ids):
            return None
        order = np.argsort(ids)
        narrow = np.int32 if len(ids) <= np.iinfo(np.int32).max else np.int64
        file = ColumnFile(InputColumn("order"), self._directory)
        for first in range(0, len(order), _CHUNK):
            chunk = order[first : first + _CHUNK + 1]  # with the first row of the next one
            self._check_unique(ids[chunk])
            file.write(chunk[:_CHUNK].astype(narrow))
        return file.map(len(order), None)

    def _check_unique(self, sorted_ids: npt.NDArray[Any]) -> None:
        same = np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])
        if len(same):
            name = cast(InputColumn, self._columns.row_id).name
            raise InvalidInput(
                f"the row id column {name!r} holds {int(sorted_ids[same[0]])} more than once in one shard; expected "
                "ids that are unique in the data set."
            )


def _increasing(ids: npt.NDArray[Any]) -> bool:
    chunks = (ids[start : start + _CHUNK + 1] for start in range(0, len(ids), _CHUNK))
    return all(bool((chunk[1:] > chunk[:-1]).all()) for chunk in chunks)  # a difference might overflow the dtype
