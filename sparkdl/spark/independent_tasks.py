"""Tasks without a reduction: one per index, over all rows or over one shard.

A task over all rows is one partition that reads the packed blocks of all shards. It writes them to a disk of its
executor, where later tasks find them. Nothing is shuffled, and the driver receives no row. All tasks form one ordinary
job, in which Spark reruns only lost tasks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import TaskContext

from sparkdl.cluster.tasks import TaskResult
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.data.shard import Shard, numbers
from sparkdl.data.shard_store import ShardStore
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from sparkdl.spark.executor_tasks import CHANGED, PackedData, drain, expect_rows, map_shard, store_of
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.spark.session import SharedBytes
from sparkdl.spark.tensor_chunks import TaskRow
from sparkdl.telemetry.task_recorder import Reporting

EachRow = tuple[int, bytes]
"""Index and the packed ``TaskResult``."""

_CHUNK = 4 << 20  # bytes of a row: a server sends rows in messages of about as many


@dataclass(frozen=True)
class IndependentTask:
    """Maps all rows, or one shard."""

    work: SharedBytes  # the pickled MapReduce
    data: PackedData
    indices: tuple[int, ...]  # of the tasks, one per partition; or of the shards to map
    attempts: int  # of Spark for a task, before it fails the job
    reporting: Reporting
    device: str = "cpu"

    def all_rows(self, partition: int, rows: Iterable[Any], *, stored: bool = False) -> Iterator[EachRow]:
        """Map all rows, from their blocks; if ``stored``, without blocks, and only if this executor has the rows."""
        freeze_imports()
        data, number = self.data, len(self.data.shard_rows)  # the store holds all rows as one more shard
        store, remaining = store_of(data.key, number), iter(rows)
        error = None if stored else self._write(store, number, remaining)
        drain(remaining)
        if stored and not store.has(number):
            return

        def open_all() -> Shard:
            if error is not None:
                raise error
            shard = store.open(number, data.columns, data.shard_rows, data.layout)
            packed = total([Fingerprint.parse(text) for text in data.fingerprints if text])
            if total([Fingerprint.parse(store.fingerprint(shard))]) != packed:
                raise InvalidInput(CHANGED)
            return _as_only_shard(shard)

        yield self._mapped(self.indices[partition], open_all)

    def _write(self, store: ShardStore, number: int, rows: Iterator[Any]) -> InvalidInput | None:
        blocks = expect_rows(self._as_packed(rows), sum(self.data.shard_rows))
        try:
            with store.exclusive(number):  # otherwise each task of an executor would write its own copy
                if not store.has(number):
                    with store.writing(number) as append:
                        for row in blocks:
                            append(row.payload)
            drain(blocks)
        except InvalidInput as error:
            return error
        return None

    def _as_packed(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            # One fingerprint of all rows would miss a reordered shard, in which Spark's row ids differ.
            if row.block == 0 and json.loads(row.about).get("fingerprint") != self.data.fingerprints[row.shard]:
                raise InvalidInput(CHANGED)
            yield row

    def shard(self, partition: int, rows: Iterable[Any]) -> Iterator[EachRow]:
        """Map the shard from its blocks, if it is in ``indices``."""
        freeze_imports()
        if partition in self.indices:
            self.data.build(partition, rows)
            yield self._mapped(partition, partial(self.data.open, partition))
        drain(rows)

    def _mapped(self, index: int, shard: Callable[[], Shard]) -> EachRow:
        try:  # a task that raises would fail the whole job
            result = map_shard(self.work, index, shard, index, self.reporting, device=self.device)
        except OSError as error:
            context = TaskContext.get()
            if context is None or context.attemptNumber() + 1 < self.attempts:
                raise
            result = TaskResult.of_error(index, error)
        return index, result.packed()


@dataclass(frozen=True)
class CutTask:
    """A task whose packed results are cut into chunks of 4 MiB, for queries."""

    task: Callable[[int, Iterable[Any]], Iterator[EachRow]]

    def run(self, partition: int, rows: Iterable[Any]) -> Iterator[TaskRow]:
        """Yield chunks with the index of the result as their shard. Their name identifies this run of the task."""
        for index, packed in self.task(partition, rows):
            name = f"{uuid.uuid4().hex} {-(-len(packed) // _CHUNK)}"
            for piece, first in enumerate(range(0, len(packed), _CHUNK)):
                yield index, piece, name, packed[first : first + _CHUNK]

    @staticmethod
    def count(name: str) -> int:
        """The number of chunks of a result, by their name."""
        return int(name.partition(" ")[2])


def _as_only_shard(shard: Shard) -> Shard:
    row_id, order = shard.columns.row_id, None
    if row_id is not None:
        spool = Spool(shard.columns, directory=local_directory(shard.index))
        order = spool.order(numbers(shard.tensors, row_id.name))
    return replace(shard, index=0, count=1, shard_rows=(shard.rows,), order=order)
