"""Tasks without a reduction: one per index, over all rows or over one shard.

A task over all rows is one partition that reads the packed blocks of all shards. It writes them to a disk of its
executor, where later tasks find them. Nothing is shuffled, and the driver receives no row. All tasks form one ordinary
job, in which Spark reruns only lost tasks. A single task first runs without blocks, and only if its executor lacks the
rows, a second job reads them.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark import RDD, StorageLevel, TaskContext
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

from sparkdl.cluster.shutdown import POLL, stop_requested, stopped
from sparkdl.cluster.tasks import TaskResult
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.data.shard import Shard, numbers
from sparkdl.data.shard_store import ShardStore
from sparkdl.data.spool import Spool
from sparkdl.errors import ErrorContext, InvalidInput, WorkerLost
from sparkdl.spark.error_messages import cancellation, first_lines, invalid_setting
from sparkdl.spark.executor_tasks import CHANGED, PackedData, drain, expect_rows, map_shard, store_of
from sparkdl.spark.job_watch import tagged
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.spark.session import Session, SharedBytes, session_of
from sparkdl.spark.session.errors import GONE, JVM_ERRORS
from sparkdl.telemetry.task_recorder import Reporting

EachRow = tuple[int, bytes]
"""Index and the packed ``TaskResult``."""

_SMALL = 1 << 14  # bytes of a result that the driver collects when its task ends, so that no executor can lose it


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


def _as_only_shard(shard: Shard) -> Shard:
    row_id, order = shard.columns.row_id, None
    if row_id is not None:
        spool = Spool(shard.columns, directory=local_directory(shard.index))
        order = spool.order(numbers(shard.tensors, row_id.name))
    return replace(shard, index=0, count=1, shard_rows=(shard.rows,), order=order)


def run_each(
    spark: SparkSession, packed: RDD[Any], task: IndependentTask, *, all_rows: bool, profile: ResourceProfile | None
) -> Iterator[EachRow]:
    """Run all tasks as one job with a resource profile, then fetch large results one after the other.

    Raises:
        WorkerLost: the Spark job failed.
        Stopped: a stop was requested, and the tasks were cancelled.
    """
    if not task.indices:
        return
    if stop_requested() is not None:
        raise stopped("had not begun")
    if all_rows:
        copies = spark.sparkContext.union([packed.coalesce(1)] * len(task.indices))
        rows = copies.mapPartitionsWithIndex(task.all_rows)
    else:
        rows = packed.mapPartitionsWithIndex(task.shard)
    try:
        if all_rows and len(task.indices) == 1:
            nothing = spark.sparkContext.parallelize([0], 1)
            stored = nothing.mapPartitionsWithIndex(partial(task.all_rows, stored=True))
            if results := [*_results(spark, with_profile(stored, profile), task, stored=True)]:
                yield from results
                return
        yield from _results(spark, with_profile(rows, profile), task)
    except JVM_ERRORS as error:
        if stop_requested() is not None:
            raise stopped("its unfinished tasks were cancelled") from error
        lost = WorkerLost(f"Spark failed the tasks: {first_lines(error)}", context=ErrorContext("map"))
        raise cancellation(error) or invalid_setting(error) or lost from error


def _results(spark: SparkSession, rows: RDD[Any], task: IndependentTask, *, stored: bool = False) -> Iterator[EachRow]:
    rows.persist(StorageLevel.DISK_ONLY)  # the driver fetches one at a time, without running tasks again
    session, tag = session_of(spark), uuid.uuid4().hex
    try:
        with tagged(session, tag, partial(_cancel_on_stop, session, tag)):
            results = {index: (where, row) for where, index, row in rows.mapPartitionsWithIndex(_small_rows).collect()}
        for index in task.indices if results or not stored else ():
            where, row = results[index]
            yield from spark.sparkContext.runJob(rows, list, [where]) if row is None else [row]
    finally:
        with suppress(*GONE):
            rows.unpersist()


def _small_rows(partition: int, rows: Iterable[EachRow]) -> Iterator[tuple[int, int, EachRow | None]]:
    return ((partition, row[0], row if len(row[1]) <= _SMALL else None) for row in rows)


def _cancel_on_stop(session: Session, tag: str, ended: threading.Event) -> None:
    while not ended.wait(POLL):  # repeat, for a job that had not started
        if stop_requested() is not None:
            with suppress(*JVM_ERRORS):
                session.cancel(tag)


def with_profile(rows: RDD[Any], profile: ResourceProfile | None) -> RDD[Any]:
    """Let the stages that compute these rows have the profile; None for the application's own."""
    return rows if profile is None else rows.withResources(profile)
