"""Rounds on Spark as ordinary tasks, which tolerate dynamic allocation, speculation and preemption.

Spark packs the rows once, in row-id order, into persisted blocks of tensors. The task that packs a shard also writes it
to a disk of its executor. One small row per shard is cached besides, and a round is a job over these rows: its tasks
run where the files are. If an executor lacks a shard's files, its task reports it, and a second job builds them from
the blocks. Every round has the same plan, however many there were.

The driver reduces small results. Large ones are split into chunks, which Spark sorts and tasks reduce.

``classic_tasks.py`` has the jobs of a classic session, over RDDs, and ``connect_tasks.py`` has the queries of Connect.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl.cluster.shutdown import stop_requested, stopped
from sparkdl.cluster.tasks import MapReduce, TaskResult, Tensors, emit, raise_on_failure, reduce_results
from sparkdl.data.column_file import common_layout
from sparkdl.data.columns import Columns
from sparkdl.errors import ErrorContext, InvalidInput, WorkerLost
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state
from sparkdl.spark.columns import col, numbered, select_columns
from sparkdl.spark.error_messages import cancellation, first_lines, invalid_setting
from sparkdl.spark.executor_tasks import PACKED, MapTask, PackedData, PackedFrame, PackTask, ReduceTask, delete_files
from sparkdl.spark.independent_tasks import EachRow, IndependentTask
from sparkdl.spark.session import SharedBytes, session_of
from sparkdl.spark.session.errors import GONE, JVM_ERRORS
from sparkdl.spark.session.shared_bytes import SharedValue
from sparkdl.spark.slots.task_resources import TaskResources
from sparkdl.spark.tensor_chunks import PIECES, ChunksLost, RoundResults, TaskRow, assembled
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.task_recorder import Reporting

Rows = TypeVar("Rows")
"""Rows on executors: an RDD or a DataFrame."""

_INLINE = 1 << 16  # maximum bytes of a state inside the task
_DIRECT = 64 << 20  # maximum bytes of results that the driver reduces
# Approximate bytes of reduced results that the driver fetches at a time; by chance several times as many. The
# driver's JVM, 1 GiB by default, needs contiguous memory for them, beside the weights that it has sent.
_REDUCED = 4 << 20
_TRIES = 4  # as Spark's spark.task.maxFailures


@dataclass(frozen=True)
class TaskSettings:
    """How the tasks of a cluster run.

    Attributes:
        size: minimum number of tasks that reduce.
        requests: of the tasks that map.
        device: of the tasks that map.
        reporting: where tasks report their events.
        title: of the jobs in the Spark UI.
        listener: called for tasks that may have lost events.
        directory: a folder that executors and this process share; None without one.
    """

    size: int
    requests: TaskResources
    device: str
    reporting: Reporting
    title: str
    listener: Callable[[Event], None] | None
    directory: str | None = None


class ShardJobs(Protocol[Rows]):
    """Spark jobs over the packed rows of a session.

    Attributes:
        lost: whether the session has ended, so that nobody answers.
    """

    lost: bool

    def persist_blocks(self) -> tuple[int, list[tuple[int, int, str]]]:
        """Pack and persist the rows: the number of shards, and ``first_rows`` of those with rows."""

    def map_shards(self, task: Callable[[int, Iterable[Any]], Iterator[TaskRow]]) -> Rows:
        """A task for each shard, where its files are."""

    def build_shards(self, task: MapTask, absent: Sequence[int]) -> Rows:
        """``MapTask.build`` for the shards that are absent."""

    def each(self, task: IndependentTask, *, all_rows: bool, stored: bool) -> Rows:
        """The tasks without a reduction."""

    def collected(self, rows: Rows, shards: Sequence[int] | None = None) -> list[TaskRow]:
        """All rows; with ``shards`` of these partitions alone."""

    def persisted(self, rows: Any, stack: ExitStack) -> Any:
        """Rows, or a DataFrame, which Spark keeps on disk until the stack ends: further jobs run no task again."""

    def results(self, rows: Rows) -> list[TaskRow]:
        """The rows that are no chunks."""

    def pieces(self, rows: Rows, absent: Sequence[int]) -> DataFrame:
        """The chunks of all shards that are not absent."""

    def fetched(self, reduced: DataFrame, pieces: int, shards: int) -> Iterator[TaskRow]:
        """The reduced chunks, a few at a time; raises ChunksLost if some are not of all shards."""

    def fetch_each(self, rows: Rows, count: int) -> dict[int, Callable[[], Iterable[EachRow]]]:
        """Run so many tasks of ``each``; for each index, a function that fetches its result."""

    def free(self) -> None:
        """Unpersist the blocks."""

    def share(self, packed: bytes) -> SharedValue:
        """Bytes for tasks; raises InvalidInput if there are too many."""


class SparkTaskRunner(Generic[Rows]):
    """``TaskRunner`` of a Spark session; ``pack`` the data before the first round, ``close`` it after the last.

    Args:
        jobs: makes the jobs of this kind of session.
        spark: the session.
        data: the rows.
        columns: the columns that tasks read.
        num_shards: number of shards; None keeps the partitions.
        settings: how tasks run.
    """

    def __init__(
        self,
        jobs: Callable[[SparkSession, PackedFrame], ShardJobs[Rows]],
        spark: SparkSession,
        data: DataFrame,
        columns: Columns | Sequence[str] | None,
        *,
        num_shards: int | None,
        settings: TaskSettings,
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
        self._session, self._settings = session_of(spark), settings
        self._key = uuid.uuid4().hex
        self._works: dict[type, tuple[bytes, Any]] = {}  # digest and shared bytes of the last large work of a class
        self._large: dict[type, bool] = {}  # whether results of a class of work must be split, as known so far
        rows = numbered(frame).withColumn("shard", F.spark_partition_id())
        pack = PackTask(self._columns, tuple(frame.columns), self._key)
        blocks = rows.mapInArrow(pack.run, PACKED)
        shuffled, requests, directory = num_shards is not None, settings.requests, settings.directory
        self._jobs = jobs(spark, PackedFrame(blocks, self._key, shuffled, requests, directory))

    def pack(self) -> None:
        """Pack the data; raises InvalidInput if its values are invalid."""
        with self._session.described(f"{self._settings.title}: pack the rows"):
            try:
                count, triggers = self._jobs.persist_blocks()
            except JVM_ERRORS as error:
                if (cancelled := cancellation(error)) is not None:
                    raise cancelled from error
                raise
        shards = {shard: (rows, json.loads(about)) for shard, rows, about in sorted(triggers)}
        for shard, (_, about) in shards.items():
            if "trouble" in about:
                raise InvalidInput(about["trouble"], context=ErrorContext("feed", shard))
        layout = common_layout((shard, about["layout"]) for shard, (_, about) in shards.items())
        self.shard_rows: tuple[int, ...] = tuple(shards[index][0] if index in shards else 0 for index in range(count))
        if not shards:
            raise InvalidInput("the data has no rows; expected at least one.", context=ErrorContext("feed"))
        fingerprints = tuple(shards[index][1]["fingerprint"] if index in shards else "" for index in range(count))
        self._data = PackedData(self._key, self._columns, self.shard_rows, fingerprints, layout)

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Run one round as one or several Spark jobs."""
        shipped, packed = self._shipped(work), pack_state(state)
        large = self._large.setdefault(type(work), len(packed) * len(self.shard_rows) > _DIRECT)
        reporting, device = replace(self._settings.reporting, number=number), self._settings.device
        try:
            with self._sent(packed) as sent:
                del packed  # a large state is in a file now
                for _ in range(_TRIES):
                    task = MapTask(shipped, sent, self._data, _DIRECT, large, reporting=reporting, device=device)
                    reduced = self._reduce_on_executors if large else self._reduce_on_driver
                    with self._session.described(f"{self._settings.title}: round {number}, {type(work).__name__}"):
                        if result := reduced(work, task, number):
                            return result
                    large = self._large[type(work)]
            raise WorkerLost(f"results of round {number} were lost {_TRIES} times.", context=ErrorContext("reduce"))
        except JVM_ERRORS as error:
            lost = WorkerLost(f"Spark failed round {number}: {first_lines(error)}", context=ErrorContext("map"))
            raise cancellation(error) or invalid_setting(error) or lost from error

    def _reduce_on_driver(self, work: MapReduce, task: MapTask, number: int) -> tuple[Tensors, list[Any]] | None:
        results = RoundResults(len(self.shard_rows))
        results.take(self._jobs.collected(self._jobs.map_shards(task.run)))
        if results.absent:
            results.take(self._jobs.collected(self._jobs.build_shards(task, results.absent), results.absent))
        self._check(results, number)
        self._large[type(work)] = results.large
        return None if results.large or results.absent else (reduce_results(work, results.in_order), results.notes)

    def _reduce_on_executors(self, work: MapReduce, task: MapTask, number: int) -> tuple[Tensors, list[Any]] | None:
        results = RoundResults(len(self.shard_rows))
        with ExitStack() as stack:
            # Persist, so that an absent shard repeats no map, and a failed one prevents the reduction.
            rows = self._jobs.persisted(self._jobs.map_shards(task.run), stack)
            results.take(self._jobs.results(rows))
            absent, parts = results.absent, [(rows, results.absent)]
            if absent:
                built = self._jobs.persisted(self._jobs.build_shards(task, absent), stack)
                results.take(self._jobs.results(built))
                parts.append((built, []))
            self._check(results, number)
            if results.absent:
                return None
            self._large[type(work)] = results.pieces > 0
            if not results.pieces:
                return reduce_results(work, results.in_order), results.notes
            # Lost chunks that are mapped again may reappear; they must not count twice.
            pieces = reduce(DataFrame.union, [self._jobs.pieces(*part) for part in parts])
            tasks = max(self._settings.size, -(-results.bytes // _REDUCED))
            ordered = pieces.repartition(tasks, "piece").sortWithinPartitions("piece", "shard")
            reduced = self._jobs.persisted(ordered.mapInArrow(ReduceTask(task.work).run, PIECES), stack)
            try:
                return assembled(self._jobs.fetched(reduced, results.pieces, len(self.shard_rows))), results.notes
            except ChunksLost:
                return None

    def _check(self, results: RoundResults, number: int) -> None:
        emit(results.in_order, self._settings.listener)
        raise_on_failure(results.in_order, number)

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run all tasks as one Spark job; several threads may call it at a time."""
        if not indices:
            return
        if stop_requested() is not None:
            raise stopped("had not begun")
        settings = self._settings
        with self._sent(ship(work)) as sent:
            attempts = self._session.task_attempts()
            task = IndependentTask(
                sent, self._data, tuple(indices), attempts, reporting=settings.reporting, device=settings.device
            )
            with self._session.described(f"{settings.title}: {len(indices)} tasks, {type(work).__name__}"):
                try:
                    for _, packed in self._run_each(task, all_rows=all_rows):
                        result = TaskResult.unpacked(packed)
                        emit([result], settings.listener)
                        yield result
                except JVM_ERRORS as error:
                    if stop_requested() is not None:
                        raise stopped("its unfinished tasks were cancelled") from error
                    lost = WorkerLost(f"Spark failed the tasks: {first_lines(error)}", context=ErrorContext("map"))
                    raise cancellation(error) or invalid_setting(error) or lost from error

    def _run_each(self, task: IndependentTask, *, all_rows: bool) -> Iterator[EachRow]:
        """Run the tasks, then fetch large results one after the other.

        A single task first runs without blocks, and only if its executor lacks the rows, a second job reads them.
        """
        for stored in (True, False) if all_rows and len(task.indices) == 1 else (False,):
            with ExitStack() as stack:
                rows = self._jobs.persisted(self._jobs.each(task, all_rows=all_rows, stored=stored), stack)
                fetch = self._jobs.fetch_each(rows, len(task.indices))
                for index in task.indices if fetch or not stored else ():
                    yield from fetch[index]()
                if fetch:
                    return

    @contextmanager
    def _sent(self, packed: bytes) -> Iterator[SharedBytes]:
        shared = self._jobs.share(packed) if len(packed) > _INLINE else None
        sent: SharedBytes = packed if shared is None else shared
        del packed
        try:
            yield sent
        finally:
            if shared is not None:
                with suppress(*GONE):
                    shared.destroy()

    def _shipped(self, work: MapReduce) -> SharedBytes:
        shipped = ship(work)
        if len(shipped) <= _INLINE:
            return shipped
        digest, (known, earlier) = hashlib.sha256(shipped).digest(), self._works.get(type(work), (None, None))
        if known != digest:
            if earlier is not None:
                earlier.destroy()
            self._works[type(work)] = digest, self._jobs.share(shipped)
        shared: SharedValue = self._works[type(work)][1]
        return shared

    def close(self) -> None:
        """Delete the files on executors, and unpersist the blocks.

        One task per slot reaches every idle executor. Files of a busy one are deleted with it, as Spark's own are.
        """
        with suppress(*GONE):
            for _, shared in self._works.values():
                shared.destroy()
            self._works.clear()
            self._jobs.free()  # notices if the session has ended
        with suppress(*GONE):
            if not self._jobs.lost:
                slots = max(2, self._session.slots(None, None)[0] or self._session.parallelism())
                self._session.run_tasks(partial(delete_files, self._key), [*range(slots)])
