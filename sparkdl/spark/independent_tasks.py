"""Tasks without a reduction: one per index, over all rows or over one shard.

A task over all rows is one partition that reads the packed blocks of all shards. It writes them to a disk of its
executor, where later tasks find them. Nothing is shuffled, and the driver receives no row. All tasks form one ordinary
job, in which Spark reruns only lost tasks.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel, TaskContext

from sparkdl.cluster.shutdown import POLL, stop_requested, stopped
from sparkdl.cluster.tasks import TaskResult, mapped
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.data.shard import Shard, numbers
from sparkdl.data.shard_store import ShardStore, empty_part
from sparkdl.data.spool import Spool
from sparkdl.errors import ErrorContext, InvalidInput, WorkerLost
from sparkdl.io.threads import torch_threads
from sparkdl.spark.error_messages import first_lines
from sparkdl.spark.executor_tasks import CHANGED, Payload, expect_rows, is_current, local_directory, store_of, value_of
from sparkdl.spark.jvm import GONE, JVM_ERRORS
from sparkdl.spark.python_worker import freeze_imports
from sparkdl.telemetry.task_recorder import Reporting

EachRow = tuple[int, bytes]
"""Index and the packed ``TaskResult``."""

_SMALL = 1 << 14  # bytes of a result that the driver collects when its task ends, so that no executor can lose it


@dataclass(frozen=True)
class EachTask:
    """Maps all rows, or one shard; other attributes as of ``MapTask``.

    Attributes:
        indices: the tasks' indices, one per partition; or the indices of the shards to map.
        attempts: number of times Spark tries a task before it fails the job.
    """

    work: Payload
    key: str
    columns: Columns
    parts: tuple[int, ...]
    fingerprints: tuple[str, ...]
    layout: Mapping[str, Layout]
    indices: tuple[int, ...]
    attempts: int
    reporting: Reporting = field(default_factory=Reporting)

    def all_rows(self, partition: int, rows: Iterable[Any]) -> Iterator[EachRow]:
        """Map all rows, from their blocks."""
        freeze_imports()
        number = len(self.parts)  # the store holds all rows as one more shard
        store, remaining = store_of(self.key, number), iter(rows)
        trouble = self._written(store, number, remaining)
        for _ in remaining:
            continue

        def every() -> Shard:
            if trouble is not None:
                raise trouble
            part = store.open(number, self.columns, self.parts, self.layout)
            wanted = total([Fingerprint.parse(each) for each in self.fingerprints if each])
            if total([Fingerprint.parse(store.fingerprint(part))]) != wanted:
                raise InvalidInput(CHANGED)
            return _as_only_shard(part)

        yield self._mapped(partition, every)

    def _written(self, store: ShardStore, number: int, rows: Iterator[Any]) -> InvalidInput | None:
        """Write all rows, unless the store has them; returns an error of the rows."""
        blocks = expect_rows(self._as_packed(rows), sum(self.parts))
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
            if row.block == 0 and json.loads(row.about).get("fingerprint") != self.fingerprints[row.part]:
                raise InvalidInput(CHANGED)
            yield row

    def part(self, partition: int, rows: Iterable[Any]) -> Iterator[EachRow]:
        """Map the shard from its blocks, if it is in ``indices``."""
        freeze_imports()
        if partition not in self.indices:
            for _ in rows:
                continue
            return
        store, known = store_of(self.key, partition), (self.columns, self.parts, self.layout)
        blocks = expect_rows(rows, self.parts[partition])
        if self.parts[partition] and not is_current(store, partition, known, self.fingerprints[partition]):
            with store.writing(partition) as append:
                for row in blocks:
                    append(row.payload)
        for _ in blocks:
            continue

        def own() -> Shard:
            part = store.open(partition, *known) if self.parts[partition] else empty_part(partition, *known)
            if part.rows and store.fingerprint(part) != self.fingerprints[partition]:
                raise InvalidInput(CHANGED)
            return part

        yield self._mapped(self.indices.index(partition), own)

    def _mapped(self, position: int, part: Callable[[], Shard]) -> EachRow:
        """Map rows; returns errors, since a task that raises would fail the whole job."""
        context, index = TaskContext.get(), self.indices[position]
        attempt = 0 if context is None else context.attemptNumber()
        try:
            with torch_threads(None if context is None else context.cpus()):
                work = value_of(self.work)
                found = mapped(work, index, part(), index=index, reporting=self.reporting, attempt=attempt)
        except InvalidInput as error:
            found = TaskResult.of_error(index, error)
        except OSError as error:
            if context is None or attempt + 1 < self.attempts:
                raise
            found = TaskResult.of_error(index, error)
        return index, found.packed()


def _as_only_shard(part: Shard) -> Shard:
    """All rows as the only shard, in the order of their ids."""
    identity = part.columns.row_id
    ids = None if identity is None else numbers(part.tensors, identity.name)
    spool = Spool(part.columns, directory=local_directory(part.index))
    order = None if ids is None else spool.order(ids)
    return replace(part, index=0, count=1, parts=(part.rows,), order=order)


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
        rows = packed.mapPartitionsWithIndex(task.part)
    rows.persist(StorageLevel.DISK_ONLY)  # the driver fetches one at a time, without running tasks again
    try:
        with _cancelled_by_stop(context, task.key):
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
    over = threading.Event()

    def watch() -> None:
        while stop_requested() is None:
            if over.wait(POLL):
                return
        while not over.wait(POLL):  # repeat, for a job that had not started
            with suppress(*JVM_ERRORS):
                context.cancelJobsWithTag(tag)

    if stop_requested() is not None:
        raise stopped("had not begun")
    thread = threading.Thread(target=watch, name="sparkdl-stop-tasks", daemon=True)
    context.addJobTag(tag)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        context.removeJobTag(tag)
