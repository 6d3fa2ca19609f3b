"""Rounds on Spark as ordinary tasks, which tolerate dynamic allocation, speculation and preemption.

Spark packs the rows once, in row-id order, into a persisted RDD of blocks of tensors. The task that packs a shard also
writes it to a disk of its executor. One small row per shard is cached besides, and a round is a job over these rows:
its tasks run where the files are. If an executor lacks a shard's files, its task reports it, and a second job builds
them from the blocks. Every round has the same plan, however many there were.

The driver reduces small results. Large ones are split into chunks, which Spark sorts and tasks reduce.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl.cluster.tasks import MapReduce, TaskResult, Tensors, emit, raise_on_failure, reduce_results
from sparkdl.data.column_file import common_layout
from sparkdl.data.columns import Columns
from sparkdl.errors import ErrorContext, InvalidInput, WorkerLost
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state
from sparkdl.spark.classic_independent_tasks import IndependentTask, run_each, with_profile
from sparkdl.spark.columns import col, numbered, select_columns
from sparkdl.spark.error_messages import cancellation, first_lines, invalid_setting
from sparkdl.spark.executor_tasks import PACKED, MapTask, PackedData, PackTask, ReduceTask, delete_files, first_rows
from sparkdl.spark.session import session_of
from sparkdl.spark.session.classic_slots import task_attempts
from sparkdl.spark.session.errors import GONE, JVM_ERRORS
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.tensor_chunks import PIECES, RoundResults, assembled, is_piece, is_result
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.task_recorder import Reporting

Distributed = TypeVar("Distributed", RDD[Any], DataFrame)

_INLINE = 1 << 16  # maximum bytes of a state inside the task
_DIRECT = 64 << 20  # maximum bytes of results that the driver reduces
# Approximate bytes of reduced results that the driver fetches at a time; by chance several times as many. The
# driver's JVM, 1 GiB by default, needs contiguous memory for them, beside the weights that it has sent.
_REDUCED = 4 << 20
_TRIES = 4  # as Spark's spark.task.maxFailures
_SETTINGS = TaskResources()


class _Lost(Exception):
    """Results were lost between two jobs of a round."""


class ClassicTaskRunner:
    """``TaskRunner`` of a classic session; ``pack`` the data before the first round, ``close`` it after the last."""

    def __init__(
        self,
        spark: SparkSession,
        data: DataFrame,
        columns: Columns | Sequence[str] | None,
        *,
        num_shards: int | None,  # None keeps the partitions
        size: int,  # minimum number of tasks that reduce
        reporting: Reporting,
        requests: TaskResources = _SETTINGS,  # of the tasks that map
        device: str = "cpu",  # of the tasks that map
        title: str,  # of the jobs in the Spark UI
        listener: Callable[[Event], None] | None,  # called for tasks that may have lost events
    ) -> None:
        frame, self._columns = select_columns(data, columns)
        if num_shards is not None:
            key = self._columns.client or self._columns.row_id
            assert key is not None
            frame = frame.repartition(num_shards, col(key.name))
        else:
            # Spark's optimizer evaluates rows that the driver holds, such as a pandas table, there, and assigns all of
            # them partition 0. A sample of all rows prevents that.
            frame = frame.sample(fraction=1.0, seed=0)
        # With one copy, the loss of an executor makes Spark pack its shards again. If shuffled rows are lost too, Spark
        # reruns the whole stage, which may take long.
        self._level = StorageLevel.DISK_ONLY_2 if num_shards is None else StorageLevel.DISK_ONLY
        self._spark, self._size, self._reporting, self._title, self._listener = spark, size, reporting, title, listener
        self._session, self._requests, self._device = session_of(spark), requests, device
        self._key = uuid.uuid4().hex
        self._works: dict[type, tuple[bytes, Any]] = {}  # digest and broadcast of the last large work of a class
        self._large: dict[type, bool] = {}  # whether results of a class of work must be split, as known so far
        rows = numbered(frame).withColumn("shard", F.spark_partition_id())
        pack = PackTask(self._columns, tuple(frame.columns), self._key)
        self._blocks = rows.mapInArrow(pack.run, PACKED)
        self._cached: list[RDD[Any]] = []

    def pack(self) -> None:
        """Pack the data; raises InvalidInput if its values are invalid."""
        # On disk, since blocks are read only if an executor is lost or lacks a shard's files. As an RDD, since Spark
        # writes its bytes as they come; of a DataFrame it would hold a hundred batches in memory.
        self._packed = self._blocks.rdd.persist(self._level)
        self._triggers = self._packed.mapPartitions(first_rows).persist(StorageLevel.MEMORY_AND_DISK)
        self._cached = [self._packed, self._triggers]
        with self._session.described(f"{self._title}: pack the rows"):
            try:
                triggers = sorted(self._triggers.collect())
            except JVM_ERRORS as error:
                if (stopped := cancellation(error)) is not None:
                    raise stopped from error
                raise
            shards = {shard: (rows, json.loads(about)) for shard, rows, about in triggers}
        for shard, (_, about) in shards.items():
            if "trouble" in about:
                raise InvalidInput(about["trouble"], context=ErrorContext("feed", shard))
        layout = common_layout((shard, about["layout"]) for shard, (_, about) in shards.items())
        indices = range(self._triggers.getNumPartitions())
        self.shard_rows: tuple[int, ...] = tuple(shards[index][0] if index in shards else 0 for index in indices)
        if not shards:
            raise InvalidInput("the data has no rows; expected at least one.", context=ErrorContext("feed"))
        fingerprints = tuple(shards[index][1]["fingerprint"] if index in shards else "" for index in indices)
        self._data = PackedData(self._key, self._columns, self.shard_rows, fingerprints, layout)

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Run one round as one or several Spark jobs."""
        shipped, packed = self._shipped(work), pack_state(state)
        large = self._large.setdefault(type(work), len(packed) * len(self.shard_rows) > _DIRECT)
        try:
            with self._sent(packed) as sent:
                del packed  # a large state is in a file now
                for _ in range(_TRIES):
                    reporting = replace(self._reporting, number=number)
                    task = MapTask(shipped, sent, self._data, _DIRECT, large, reporting=reporting, device=self._device)
                    reduced = self._reduce_on_executors if large else self._reduce_on_driver
                    with self._session.described(f"{self._title}: round {number}, {type(work).__name__}"):
                        if result := reduced(work, task, number):
                            return result
                    large = self._large[type(work)]
            raise WorkerLost(f"results of round {number} were lost {_TRIES} times.", context=ErrorContext("reduce"))
        except JVM_ERRORS as error:
            lost = WorkerLost(f"Spark failed round {number}: {first_lines(error)}", context=ErrorContext("map"))
            raise cancellation(error) or invalid_setting(error) or lost from error

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run all tasks as one Spark job; several threads may call it at a time."""
        with self._sent(ship(work)) as sent:
            task = IndependentTask(
                sent,
                self._data,
                indices=tuple(indices),
                attempts=task_attempts(self._spark),
                reporting=self._reporting,
                device=self._device,
            )
            profile = self._requests.profile(self._spark)
            with self._session.described(f"{self._title}: {len(indices)} tasks, {type(work).__name__}"):
                for _, packed in run_each(self._spark, self._packed, task, all_rows=all_rows, profile=profile):
                    result = TaskResult.unpacked(packed)
                    emit([result], self._listener)
                    yield result

    @contextmanager
    def _sent(self, packed: bytes) -> Iterator[Any]:
        broadcast = self._session.share(packed) if len(packed) > _INLINE else None
        sent: Any = packed if broadcast is None else broadcast
        del packed
        try:
            yield sent
        finally:
            if broadcast is not None:
                with suppress(*GONE):
                    broadcast.destroy()

    def _shipped(self, work: MapReduce) -> Any:
        shipped = ship(work)
        if len(shipped) <= _INLINE:
            return shipped
        digest, (known, broadcast) = hashlib.sha256(shipped).digest(), self._works.get(type(work), (None, None))
        if known != digest:
            if broadcast is not None:
                broadcast.destroy()
            self._works[type(work)] = digest, self._session.share(shipped)
        return self._works[type(work)][1]

    def _reduce_on_driver(self, work: MapReduce, task: MapTask, number: int) -> tuple[Tensors, list[Any]] | None:
        results = RoundResults(len(self.shard_rows))
        results.take(self._profiled(self._triggers.mapPartitionsWithIndex(task.run)).collect())
        if results.absent:
            built = self._profiled(self._packed.mapPartitions(task.build))
            results.take(self._spark.sparkContext.runJob(built, iter, results.absent))
        emit(results.in_order, self._listener)
        raise_on_failure(results.in_order, number)
        self._large[type(work)] = results.large
        return None if results.large or results.absent else (reduce_results(work, results.in_order), results.notes)

    def _reduce_on_executors(self, work: MapReduce, task: MapTask, number: int) -> tuple[Tensors, list[Any]] | None:
        results = RoundResults(len(self.shard_rows))
        with ExitStack() as stack:
            # Persist, so that an absent shard repeats no map, and a failed one prevents the reduction.
            rows = _persisted(self._profiled(self._triggers.mapPartitionsWithIndex(task.run)), stack)
            results.take(rows.filter(is_result).collect())
            absent = results.absent
            # Lost chunks that are mapped again may reappear; they must not count twice.
            pieces = rows.filter(partial(is_piece, absent))
            if absent:
                some = self._packed.mapPartitionsWithIndex(partial(task.build_some, absent))
                built = _persisted(self._profiled(some), stack)
                results.take(built.filter(is_result).collect())
                pieces = pieces.union(built.filter(partial(is_piece, ())))
            emit(results.in_order, self._listener)
            raise_on_failure(results.in_order, number)
            if results.absent:
                return None
            self._large[type(work)] = results.pieces > 0
            if not results.pieces:
                return reduce_results(work, results.in_order), results.notes
            return self._reduced(pieces, task, results, stack)

    def _profiled(self, rows: RDD[Any]) -> RDD[Any]:
        return with_profile(rows, self._requests.profile(self._spark))

    def _reduced(
        self, rows: RDD[Any], task: MapTask, results: RoundResults, stack: ExitStack
    ) -> tuple[Tensors, list[Any]] | None:
        pieces = self._spark.createDataFrame(rows, PIECES, verifySchema=False)
        tasks = max(self._size, -(-results.bytes // _REDUCED))
        ordered = pieces.repartition(tasks, "piece").sortWithinPartitions("piece", "shard")
        reduced = _persisted(ordered.mapInArrow(ReduceTask(task.work).run, PIECES), stack)
        # All tasks reduce in parallel; then the driver fetches one task's result after the other.
        counts = [row.shard for row in reduced.select("shard").collect()]
        if counts != [len(self.shard_rows)] * results.pieces:
            return None
        try:
            return assembled(self._one_by_one(reduced.rdd, results.pieces)), results.notes
        except _Lost:
            return None

    def _one_by_one(self, rows: RDD[Any], pieces: int) -> Iterator[Any]:
        count = 0  # not toLocalIterator of a DataFrame, which would hold all chunks in the driver's JVM
        for shard in range(rows.getNumPartitions()):
            for row in self._spark.sparkContext.runJob(rows, list, [shard]):
                if row.shard != len(self.shard_rows):
                    raise _Lost
                count += 1
                yield row
        if count != pieces:
            raise _Lost

    def close(self) -> None:
        """Delete the files on executors, and unpersist the blocks.

        One task per slot reaches every idle executor. Files of a busy one are deleted with it, as Spark's own are.
        """
        context = self._spark.sparkContext
        with suppress(*GONE):
            slots = max(2, self._session.slots(None, None)[0] or 0)
            context.parallelize(range(slots), slots).foreachPartition(partial(delete_files, self._key))
        with suppress(*GONE):
            for rdd in self._cached:
                rdd.unpersist()
            for _, broadcast in self._works.values():
                broadcast.destroy()
            self._works.clear()


def _persisted(data: Distributed, stack: ExitStack) -> Distributed:
    data.persist(StorageLevel.DISK_ONLY)
    stack.callback(data.unpersist)
    return data
