"""Tasks of rounds on executors: pack a partition, map a shard, reduce chunks, delete files.

Every task reads all of its input, also on errors. Otherwise Spark ends its Python worker, and the next round waits for
a new one to import torch.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from sparkdl.cluster.group.devices import task_device
from sparkdl.cluster.tasks import TaskResult, TreeReducer, mapped
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Shard
from sparkdl.data.shard_store import ShardStore, bytes_of, empty_shard, pack, rows_in
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from sparkdl.io.files import local_directories
from sparkdl.io.pickling import unship
from sparkdl.io.serialization import unpack_state
from sparkdl.io.threads import torch_threads
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.spark.session import SharedBytes, shared
from sparkdl.spark.slots.task_resources import TaskResources, assigned_gpus, turn_of
from sparkdl.spark.tensor_chunks import PIECES, RESULT_CHUNK, ChunkHeader, TaskRow, cut_tensors, record_batch
from sparkdl.telemetry.task_recorder import Reporting

PACKED = "shard int, block int, rows bigint, about string, payload binary"
FIRST = "shard int, rows bigint, about string"

CHANGED = (
    "after an executor was lost, Spark recomputed its rows with other values. The query is not deterministic, for "
    "example rand() without a seed or rows without an order. Set idCol, or train on a table with these rows."
)


@dataclass(frozen=True)
class PackTask:
    """Packs a partition into blocks for Spark to persist, and writes them to a disk of the executor."""

    columns: Columns
    names: tuple[str, ...]  # of the columns, in order of arrival; a last column is the shard's number
    key: str  # of the packed data, under which the files lie

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the partition's blocks; the first has the number of rows and their layout, or the error."""
        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is None:
            return
        index = int(first.columns[-1][0].as_py())  # the task's own number may differ, as in a union
        try:
            spool = Spool(self.columns, directory=local_directory(index), shard=index)
            for batch in itertools.chain([first], remaining):
                spool.append(pa.RecordBatch.from_arrays(batch.columns[:-1], names=list(self.names)))
            spool.check()
            layout, shard = spool.layout(), replace(spool.shard(0, (spool.rows,), {}), index=index)
        except InvalidInput as error:
            drain(remaining)
            yield record_batch(PACKED, index, 0, 0, json.dumps({"trouble": error.message}), b"")
            return
        mark = str(fingerprint(shard))
        about = json.dumps({"layout": layout, "fingerprint": mark})
        with store_of(self.key, index).writing(index, mark) as append:
            for block, payload in enumerate(pack(shard)):
                append(payload)
                yield record_batch(PACKED, index, block, spool.rows, about, payload)


@dataclass(frozen=True)
class PackedFrame:
    """On the driver, the packed rows before Spark persists them, and how jobs over them run.

    Attributes:
        blocks: what ``PackTask`` returns.
        key: of the packed data.
        shuffled: whether a shuffle has divided the rows into shards.
        requests: of the tasks that map.
        directory: a folder that executors and the driver share; None without one.
    """

    blocks: DataFrame
    key: str
    shuffled: bool
    requests: TaskResources
    directory: str | None


@dataclass(frozen=True)
class PackedData:
    """Packed shards, whose files lie on executors."""

    key: str
    columns: Columns
    shard_rows: tuple[int, ...]
    fingerprints: tuple[str, ...]  # of every shard's rows, as packed
    layout: Mapping[str, Layout]  # for empty shards

    def has(self, index: int) -> bool:
        """Whether this executor has the shard, with the rows as packed; deletes an incomplete one."""
        if not self.shard_rows[index]:
            return True
        store = store_of(self.key, index)
        if not store.has(index):
            return False
        if store.fingerprint(store.open(index, self.columns, self.shard_rows, self.layout)) == self.fingerprints[index]:
            return True
        store.discard(index)
        return False

    def build(self, index: int, rows: Iterable[Any]) -> None:
        """Read the shard's blocks, and write them unless this executor has the shard."""
        blocks = expect_rows(rows, self.shard_rows[index])
        if not self.has(index):
            with store_of(self.key, index).writing(index) as append:
                for row in blocks:
                    append(row.payload)
        drain(blocks)

    def open(self, index: int) -> Shard:
        """The shard on this executor; raises InvalidInput if its rows differ from those that were packed."""
        if not self.shard_rows[index]:
            return empty_shard(index, self.columns, self.shard_rows, self.layout)
        store = store_of(self.key, index)
        shard = store.open(index, self.columns, self.shard_rows, self.layout)
        if store.fingerprint(shard) == self.fingerprints[index]:
            return shard
        raise InvalidInput(CHANGED)


@dataclass(frozen=True)
class MapTask:
    """Maps shards, and splits tensors that are too large for a reduction on the driver into chunks."""

    work: SharedBytes  # the pickled MapReduce
    state: SharedBytes
    data: PackedData
    most: int  # bytes of all shards' tensors that the driver reduces
    cut: bool  # whether to split large tensors; if False, a large result is left out and marked ``large``
    reporting: Reporting
    device: str = "cpu"

    def run(self, index: int, rows: Iterable[Any]) -> Iterator[TaskRow]:
        """Map a shard, or report it missing on this executor."""
        freeze_imports()
        drain(rows)
        if self.data.has(index):
            yield from self._map(index)
        else:
            yield index, RESULT_CHUNK, "missing", b""

    def build(self, rows: Iterable[Any]) -> Iterator[TaskRow]:
        """Write the shard from its blocks, unless this executor has it, and map it."""
        freeze_imports()
        remaining = iter(rows)
        if (first := next(remaining, None)) is not None:
            self.data.build(first.shard, itertools.chain([first], remaining))
            yield from self._map(first.shard)

    def build_some(self, absent: Container[int], index: int, rows: Iterable[Any]) -> Iterator[TaskRow]:
        """``build`` for the shards in ``absent``; nothing for the others."""
        if index in absent:
            yield from self.build(rows)
        drain(rows)

    def _map(self, index: int) -> Iterator[TaskRow]:
        try:
            state = unpack_state(shared(self.state))
        except InvalidInput as error:
            yield index, RESULT_CHUNK, "", TaskResult.of_error(index, error).packed()
            return
        result = map_shard(self.work, state, partial(self.data.open, index), index, self.reporting, device=self.device)
        size = sum(tensor.nbytes for tensor in result.tensors.values())
        if size * len(self.data.shard_rows) <= self.most:
            yield index, RESULT_CHUNK, "", result.packed()
        elif not self.cut:
            yield index, RESULT_CHUNK, "large", b""
        else:
            count = 0
            for row in cut_tensors(result):
                yield row
                count += 1
            note = count, size, result.note
            yield index, RESULT_CHUNK, "cut", replace(result, tensors={}, note=note).packed()


@dataclass(frozen=True)
class PartitionTask:
    """A task of a query, which gets the number of its partition as tasks of an RDD do.

    Attributes:
        task: gets the number and the rows of the partition, and yields rows of ``PIECES``.
        count: the number of partitions that run the task; those behind them return nothing. None for all.
    """

    task: Callable[[int, Iterable[Any]], Iterator[TaskRow]]
    count: int | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the task returns."""
        context = TaskContext.get()
        index = 0 if context is None else context.partitionId()
        if self.count is None or index < self.count:
            for row in self.task(index, _rows_of(batches)):
                yield record_batch(PIECES, *row)
        drain(batches)


@dataclass(frozen=True)
class ReduceTask:
    """Reduces chunks, sorted by chunk number and then by shard."""

    work: SharedBytes

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row per chunk, with the number of reduced shards in place of the shard's index.

        The task reads all input first, so that it does not write while its JVM still does.
        """
        return iter([*self._reduced(batches)])

    def _reduced(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        reduce = unship(shared(self.work)).reduce
        rows = (row for batch in batches for row in zip(*batch.columns, strict=True))
        for (piece, text), chunks in itertools.groupby(rows, lambda row: (row[1].as_py(), row[2].as_py())):
            header, tree, shards = ChunkHeader(*json.loads(text)), TreeReducer(reduce), 0
            for *_, payload in chunks:
                tree.push({header.name: header.values(payload.as_buffer())})
                shards += 1
            [tensor] = tree.result().values()
            yield record_batch(PIECES, shards, piece, header.to_json(tensor), bytes_of(tensor))


def map_shard(
    work: SharedBytes, state: Any, shard: Callable[[], Shard], index: int, reporting: Reporting, *, device: str
) -> TaskResult:
    """``mapped`` with the cores and the GPU of the running Spark task; an InvalidInput of the rows is a result too."""
    context = TaskContext.get()
    threads, attempt = (None, 0) if context is None else (context.cpus(), context.attemptNumber())
    choose = partial(task_device, device, assigned_gpus(context), turn=turn_of(context))
    try:
        with torch_threads(threads):
            return mapped(
                shared(work), state, shard(), index=index, reporting=reporting, attempt=attempt, choose_device=choose
            )
    except InvalidInput as error:
        return TaskResult.of_error(index, error)


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for index in range(batch.num_rows):  # a batch may have 64 MB
            yield SimpleNamespace(**batch.slice(index, 1).to_pylist()[0])


def drain(rows: Iterable[Any]) -> None:
    """Read the rest of a task's input."""
    deque(rows, maxlen=0)


def expect_rows(blocks: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yield packed blocks, and raise EOFError if they have other than ``rows`` rows.

    If a task's input fails, as with a lost executor, pyspark's worker takes that for its end. Without the check the
    task would map or store an incomplete shard.
    """
    count = 0
    for row in blocks:
        count += rows_in(row.payload)
        yield row
    if count != rows:
        raise EOFError(f"{count} of {rows} rows came before the input ended")


def first_rows(rows: Iterable[Any]) -> Iterator[tuple[int, int, str]]:
    """Shard index, number of rows and description of every packed partition with rows."""
    for row in rows:
        if row.block == 0:
            yield row.shard, row.rows, row.about


def first_row(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The only row of a shard's partition in a query, as ``FIRST``; one without a description if it is empty."""
    rows = [row for batch in batches for row in batch.to_pylist()] or [{"shard": -1, "rows": 0, "about": ""}]
    yield from (record_batch(FIRST, *row.values()) for row in rows)


def delete_files(key: str, rows: Iterable[Any]) -> Iterator[Any]:
    """Delete the files of packed data on an executor."""
    drain(rows)
    for folder in local_directories():
        ShardStore(Path(folder) / f"sparkdl-shards-{key}").remove()
    return iter(())


def store_of(key: str, index: int) -> ShardStore:
    """The store on this executor for a shard of packed data."""
    return ShardStore(Path(local_directory(index)) / f"sparkdl-shards-{key}")
