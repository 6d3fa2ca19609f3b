"""Data without Spark: tables, datasets and dicts of arrays, split into shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.hashed_columns import hashed_ids
from sparkdl.errors import InvalidInput

Batches = Iterable[pa.RecordBatch]
Tabular = Any  # a pyarrow.Table, a pyarrow dataset, a dict of arrays, or a list with one table per worker

_ROWS = 65_536  # rows of a record batch


def split_rows(
    data: Tabular | None, columns: Columns | Sequence[str] | None, size: int
) -> tuple[list[Batches], Columns | None]:
    """Split data into each worker's record batches, and resolve the columns to keep; raises InvalidInput.

    A table is split into contiguous slices of nearly equal length; so is each batch of a dataset, which may be larger
    than memory. A list has one table per worker.
    """
    if data is None:
        if columns is not None:
            raise InvalidInput("columns were given without data.")
        return [[] for _ in range(size)], None
    shards, schemas = _shards(data, size)
    resolved = Columns.of(columns, schemas[0].names)
    if not resolved.inputs:
        raise InvalidInput("there are no input columns; expected at least one.")
    for schema in schemas:
        resolved.check(schema)
    if hashed := [column for column in resolved if column.hash is not None]:
        shards = [[_with_ids(batch, hashed) for batch in shard] for shard in shards]
    return shards, resolved


def _with_ids(batch: pa.RecordBatch, hashed: Sequence[InputColumn]) -> pa.RecordBatch:
    for column in hashed:
        array = hashed_ids(batch.column(column.name), column)
        batch = batch.set_column(batch.schema.names.index(column.name), column.name, array)
    return batch


def by_client(shards: Sequence[Batches], client: str) -> list[Batches]:
    """Regroup record batches so that one shard holds all rows of a client; rows keep their order.

    If the client column does not hold integers, rows stay where they are.
    """
    regrouped: list[list[pa.RecordBatch]] = [[] for _ in shards]
    for batch in itertools.chain.from_iterable(shards):
        owners = batch.column(client)
        if not pa.types.is_integer(owners.type) or owners.null_count:
            return list(shards)  # decoding it raises the error
        homes = owners.to_numpy(zero_copy_only=False).astype(np.int64) % len(shards)
        for index, shard in enumerate(regrouped):
            shard.append(batch.filter(pa.array(homes == index)))
    return list(regrouped)


def _shards(data: Tabular, size: int) -> tuple[list[Batches], list[pa.Schema]]:
    if isinstance(data, ds.Dataset):
        return [_slices(data, rank, size) for rank in range(size)], [data.schema]
    if isinstance(data, Mapping):
        data = _table(data)
    if isinstance(data, pa.Table):
        ends = [rank * data.num_rows // size for rank in range(size + 1)]
        data = [data.slice(first, last - first) for first, last in itertools.pairwise(ends)]
    if not isinstance(data, Sequence) or not all(isinstance(table, pa.Table) for table in data):
        raise InvalidInput(
            f"data is of type {type(data).__name__}; expected a pyarrow.Table, a pyarrow dataset, a dict of arrays or "
            "a list of tables. A Spark DataFrame needs a SparkCluster."
        )
    if len(data) != size:
        raise InvalidInput(f"{len(data)} tables were given for {size} workers; expected one for each.")
    return [table.to_batches(max_chunksize=_ROWS) for table in data], [table.schema for table in data]


def spill(batches: Batches, path: str) -> str | None:
    """Write batches to an Arrow file for another process; None if there are no batches."""
    remaining = iter(batches)
    if (first := next(remaining, None)) is None:
        return None
    with pa.ipc.new_file(path, first.schema) as writer:
        for batch in itertools.chain([first], remaining):
            writer.write_batch(batch)
    return path


def read(path: str | None) -> Iterator[pa.RecordBatch]:
    """Read the batches of a file that ``spill`` wrote."""
    if path is None:
        return
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _slices(data: ds.Dataset, rank: int, size: int) -> Iterator[pa.RecordBatch]:
    for index, batch in enumerate(data.to_batches()):
        turn = (rank + index) % size  # so that no worker always gets the remainders
        first, last = turn * batch.num_rows // size, (turn + 1) * batch.num_rows // size
        yield batch.slice(first, last - first)


def _table(arrays: Mapping[str, Any]) -> pa.Table:
    columns = {name: np.asarray(array) for name, array in arrays.items()}
    shapes = {name: array.shape for name, array in columns.items()}
    lengths = {shape[:1] for shape in shapes.values()}
    if len(lengths) > 1 or any(not shape or 0 in shape[1:] for shape in shapes.values()):
        raise InvalidInput(f"the arrays have the shapes {shapes}; expected [rows, ...], all with as many rows.")
    return pa.table({name: _column(array) for name, array in columns.items()})


def _column(array: npt.NDArray[Any]) -> pa.Array:
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for length in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column
