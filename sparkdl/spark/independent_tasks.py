"""Tasks without a reduction: one per index, over all rows or over one shard.

A task over all rows is one partition that reads the packed blocks of all shards. It writes them to a disk of its
executor, where later tasks find them. Nothing is shuffled, and the driver receives no row. All tasks form one ordinary
job, in which Spark reruns only lost tasks.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel

from sparkdl.cluster.shutdown import POLL, stop_requested, stopped
from sparkdl.cluster.tasks import TaskResult, mapped
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.data.shard import Shard, numbers
from sparkdl.data.shard_store import ShardStore
from sparkdl.data.spool import Spool
from sparkdl.errors import ErrorContext, InvalidInput, WorkerLost
from sparkdl.io.threads import torch_threads, watching
from sparkdl.spark.error_messages import first_lines
from sparkdl.spark.executor_tasks import (
    CHANGED,
    PackedData,
    Payload,
    cores_and_attempt,
    expect_rows,
    store_of,
    value_of,
)
from sparkdl.spark.jvm import GONE, JVM_ERRORS
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.telemetry.task_recorder import Reporting

EachRow = tuple[int, bytes]
"""Index and the packed ``TaskResult``."""

_SMALL = 1 << 14  # bytes of a result that the driver collects when its task ends, so that no executor can lose it


@dataclass(frozen=True)
class EachTask:
    """Maps all rows, or one shard.

    Attributes:
        work: the pickled ``MapReduce``, or a broadcast of it.
        data: the shards.
        indices: the tasks' indices, one per partition; or the indices of the shards to map.
        attempts: number of times Spark tries a task before it fails the job.
        reporting: where tasks report their events.
    """

    work: Payload
    data: PackedData
    indices: tuple[int, ...]
    attempts: int
    reporting: Reporting = field(default_factory=Reporting)

    def all_rows(self, partition: int, rows: Iterable[Any]) -> Iterator[EachRow]:
        """Map all rows, from their blocks."""
        freeze_imports()
        data, number = self.data, len(self.data.shard_rows)  # the store holds all rows as one more shard
        store, remaining = store_of(data.key, number), iter(rows)
        trouble = self._write(store, number, remaining)
        for _ in remaining:
            continue

        def every() -> Shard:
            if trouble is not None:
                raise trouble
            shard = store.open(number, data.columns, data.shard_rows, data.layout)
            wanted = total([Fingerprint.parse(each) for each in data.fingerprints if each])
            if total([Fingerprint.parse(store.fingerprint(shard))]) != wanted:
                raise InvalidInput(CHANGED)
            return _as_only_shard(shard)

        yield self._mapped(self.indices[partition], every)

    def _write(self, store: ShardStore, number: int, rows: Iterator[Any]) -> InvalidInput | None:
        """Write all rows, unless the store has them; returns an error of the rows."""
        blocks = expect_rows(self._as_packed(rows), sum(self.data.shard_rows))
        try:
            with store.exclusive(number):  # otherwise each task of an executor would write its own copy
                if not store.has(number):
                    with store.writing(number) as append:
                        for row in blocks:
                            append(row.payload)
            for _ in blocks:
                continue
        except InvalidInput as error:
            return error
        return None

    def _as_packed(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the blocks; raises InvalidInput if a shard was packed again with other rows or in another order.

        A fingerprint of all rows together would miss a reordered shard, in which Spark's row ids differ.
        """
        for row in rows:
            if row.block == 0 and json.loads(row.about).get("fingerprint") != self.data.fingerprints[row.shard]:
                raise InvalidInput(CHANGED)
            yield row

    def shard(self, partition: int, rows: Iterable[Any]) -> Iterator[EachRow]:
        """Map the shard from its blocks, if it is in ``indices``."""
        freeze_imports()
        if partition in self.indices:
            self.data.build(partition, rows)
            yield self._mapped(partition, partial(self.data.open, partition))
        for _ in rows:
            continue

    def _mapped(self, index: int, shard: Callable[[], Shard]) -> EachRow:
        """Map rows; returns errors, since a task that raises would fail the whole job."""
        threads, attempt = cores_and_attempt()
        try:
            with torch_threads(threads):
                work = value_of(self.work)
                found = mapped(work, index, shard(), index=index, reporting=self.reporting, attempt=attempt)
        except InvalidInput as error:
            found = TaskResult.of_error(index, error)
        except OSError as error:
            if threads is None or attempt + 1 < self.attempts:
                raise
            found = TaskResult.of_error(index, error)
        return index, found.packed()


def _as_only_shard(shard: Shard) -> Shard:
    """All rows as the only shard, in the order of their ids."""
    identity = shard.columns.row_id
    ids = None if identity is None else numbers(shard.tensors, identity.name)
    spool = Spool(shard.columns, directory=local_directory(shard.index))
    order = None if ids is None else spool.order(ids)
    return replace(shard, index=0, count=1, shard_rows=(shard.rows,), order=order)


def run_each(context: SparkContext, packed: RDD[Any], task: EachTask, *, all_rows: bool) -> Iterator[EachRow]:
    """Run all tasks as one job, then fetch large results one after the other.

    Raises:
        WorkerLost: the Spark job failed.
        Stopped: a stop was requested, and the tasks were cancelled.
    """
    if not task.indices:
        return
    if all_rows:
        every = packed.coalesce(1)
        rows = context.union([every] * len(task.indices)).mapPartitionsWithIndex(task.all_rows)
    else:
        rows = packed.mapPartitionsWithIndex(task.shard)
    rows.persist(StorageLevel.DISK_ONLY)  # the driver fetches one at a time, without running tasks again
    try:
        with _cancelled_by_stop(context, task.data.key):
            told = {index: (where, found) for where, index, found in rows.mapPartitionsWithIndex(_where).collect()}
        for index in task.indices:
            where, found = told[index]
            yield from context.runJob(rows, list, [where]) if found is None else [found]
    except JVM_ERRORS as error:
        if stop_requested() is not None:
            raise stopped("its unfinished tasks were cancelled") from error
        raise WorkerLost(f"Spark failed the tasks: {first_lines(error)}", place=ErrorContext("map")) from error
    finally:
        with suppress(*GONE):
            rows.unpersist()


def attempts(context: SparkContext) -> int:
    """Number of times Spark tries a task."""
    master = context.master or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        found = re.fullmatch(r"local\[[^,]+, *(\d+)\]", master)
        return int(found[1]) if found else 1
    return int(context.getConf().get("spark.task.maxFailures", "4") or 4)


def _where(partition: int, found: Iterable[EachRow]) -> Iterator[tuple[int, int, EachRow | None]]:
    """Partition and index of a result, and the result itself if it is small."""
    return ((partition, each[0], each if len(each[1]) <= _SMALL else None) for each in found)


@contextmanager
def _cancelled_by_stop(context: SparkContext, tag: str) -> Iterator[None]:
    def look(ended: threading.Event) -> None:
        while not ended.wait(POLL):  # repeat, for a job that had not started
            if stop_requested() is not None:
                with suppress(*JVM_ERRORS):
                    context.cancelJobsWithTag(tag)

    if stop_requested() is not None:
        raise stopped("had not begun")
    context.addJobTag(tag)
    try:
        with watching(look, "sparkdl-stop-tasks"):
            yield
    finally:
        context.removeJobTag(tag)
