"""Data without Spark: tables, datasets and dicts of arrays, dealt out to members."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from sparkdl.data.columns import Columns
from sparkdl.errors import InvalidInput

Batches = Iterable[pa.RecordBatch]
Tabular = Any  # a pyarrow.Table, a pyarrow dataset, a dict of arrays, or a list with one table for each member

_ROWS = 65_536  # rows of a record batch that is made here


def deal(
    data: Tabular | None, columns: Columns | Sequence[str] | None, size: int
) -> tuple[list[Batches], Columns | None]:
    """Each member's record batches, and the columns to keep of them.

    A table is cut into runs of rows of nearly equal length; of a dataset, which may be larger than memory, each
    batch is; a list of tables is taken as it is, one for each member.

    Raises:
        InvalidInput: the data is of another kind, or the columns do not fit it.
    """
    if data is None:
        if columns is not None:
            raise InvalidInput("columns were given without data.")
        return [[] for _ in range(size)], None
    parts, schemas = _parts(data, size)
    wanted = Columns.of(columns, schemas[0].names)
    if not wanted.inputs:
        raise InvalidInput("there are no input columns; expected at least one.")
    for schema in schemas:
        wanted.check(schema)
    return parts, wanted


def by_client(parts: Sequence[Batches], client: str) -> list[Batches]:
    """As many parts, with all rows of a client in one of them, in the order in which they came.

    Args:
        parts: record batches.
        client: the column that says whose row it is; where it holds no integers rows stay where they are.
    """
    found: list[list[pa.RecordBatch]] = [[] for _ in parts]
    for batch in itertools.chain.from_iterable(parts):
        owners = batch.column(client)
        if not pa.types.is_integer(owners.type) or owners.null_count:
            return list(parts)  # whoever reads it says what is wrong with it
        homes = owners.to_numpy(zero_copy_only=False).astype(np.int64) % len(parts)
        for index, home in enumerate(found):
            home.append(batch.filter(pa.array(homes == index)))
    return list(found)


def _parts(data: Tabular, size: int) -> tuple[list[Batches], list[pa.Schema]]:
    if isinstance(data, ds.Dataset):
        return [_slices(data, rank, size) for rank in range(size)], [data.schema]
    if isinstance(data, Mapping):
        data = _table(data)
    if isinstance(data, pa.Table):
        data = [_run(data, rank, size) for rank in range(size)]
    if not isinstance(data, Sequence) or not all(isinstance(table, pa.Table) for table in data):
        raise InvalidInput(
            f"data is of type {type(data).__name__}; expected a pyarrow.Table, a pyarrow dataset, a dict of arrays or "
            "a list of tables. A Spark DataFrame needs a SparkCluster."
        )
    if len(data) != size:
        raise InvalidInput(f"{len(data)} tables were given for {size} members; expected one for each.")
    return [table.to_batches(max_chunksize=_ROWS) for table in data], [table.schema for table in data]


def spill(batches: Batches, path: str) -> str | None:
    """Write batches to an Arrow file for another process; None where there are none."""
    writer = None
    for batch in batches:
        writer = writer or pa.ipc.new_file(path, batch.schema)
        writer.write_batch(batch)
    if writer is None:
        return None
    writer.close()
    return path


def read(path: str | None) -> Iterator[pa.RecordBatch]:
    """The batches of a file that ``spill`` wrote."""
    if path is None:
        return
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _run(table: pa.Table, rank: int, size: int) -> pa.Table:
    first, last = rank * table.num_rows // size, (rank + 1) * table.num_rows // size
    return table.slice(first, last - first)


def _slices(data: ds.Dataset, rank: int, size: int) -> Iterator[pa.RecordBatch]:
    for index, batch in enumerate(data.to_batches()):
        turn = (rank + index) % size  # so that the rows left over do not always go to the same member
        first, last = turn * batch.num_rows // size, (turn + 1) * batch.num_rows // size
        yield batch.slice(first, last - first)


def _table(arrays: Mapping[str, Any]) -> pa.Table:
    """A table of arrays ``[rows, ...]`` that need not be one-dimensional."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    shapes = {name: array.shape for name, array in found.items()}
    uneven = len({shape[:1] for shape in shapes.values()}) > 1
    if uneven or any(not shape or 0 in shape[1:] for shape in shapes.values()):
        raise InvalidInput(f"the arrays have the shapes {shapes}; expected [rows, ...], all with as many rows.")
    return pa.table({name: _column(array) for name, array in found.items()})


def _column(array: npt.NDArray[Any]) -> pa.Array:
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column
