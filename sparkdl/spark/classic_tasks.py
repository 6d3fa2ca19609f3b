"""Jobs of rounds in a classic session, over RDDs: a round submits an existing stage, without planning a query.

ADR 5 (``docs/adr``) has the reasons for RDDs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, SparkSession

from sparkdl.spark.executor_tasks import MapTask, PackedFrame, first_rows
from sparkdl.spark.independent_tasks import EachRow, IndependentTask
from sparkdl.spark.job_watch import cancelled_on_stop
from sparkdl.spark.session import session_of
from sparkdl.spark.session.errors import GONE
from sparkdl.spark.session.shared_bytes import SharedValue
from sparkdl.spark.tensor_chunks import PIECES, ChunksLost, TaskRow, is_piece, is_result

_SMALL = 1 << 14  # bytes of a result that the driver collects when its task ends, so that no executor can lose it


class ClassicJobs:
    """``sparkdl.spark.task_runner.ShardJobs`` of a classic session."""

    lost = False  # calls on a stopped SparkContext raise at once

    def __init__(self, spark: SparkSession, data: PackedFrame) -> None:
        self._spark, self._session, self._data = spark, session_of(spark), data
        self._cached: list[RDD[Any]] = []

    def persist_blocks(self) -> tuple[int, list[tuple[int, int, str]]]:
        # With one copy, the loss of an executor makes Spark pack its shards again. If shuffled rows are lost too, Spark
        # reruns the whole stage, which may take long.
        level = StorageLevel.DISK_ONLY if self._data.shuffled else StorageLevel.DISK_ONLY_2
        # On disk, since blocks are read only if an executor is lost or lacks a shard's files. As an RDD, since Spark
        # writes its bytes as they come.
        self._packed = self._data.blocks.rdd.persist(level)
        self._triggers = self._packed.mapPartitions(first_rows).persist(StorageLevel.MEMORY_AND_DISK)
        self._cached = [self._packed, self._triggers]
        return self._triggers.getNumPartitions(), self._triggers.collect()

    def map_shards(self, task: Callable[[int, Iterable[Any]], Iterator[TaskRow]]) -> RDD[Any]:
        return self._profiled(self._triggers.mapPartitionsWithIndex(task))

    def build_shards(self, task: MapTask, absent: Sequence[int]) -> RDD[Any]:
        return self._profiled(self._packed.mapPartitionsWithIndex(partial(task.build_some, absent)))

    def each(self, task: IndependentTask, *, all_rows: bool, stored: bool) -> RDD[Any]:
        if not all_rows:
            return self._profiled(self._packed.mapPartitionsWithIndex(task.shard))
        context = self._spark.sparkContext
        copies = [self._packed.coalesce(1)] * len(task.indices)
        rows = context.parallelize([0], 1) if stored else context.union(copies)
        return self._profiled(rows.mapPartitionsWithIndex(partial(task.all_rows, stored=stored)))

    def _profiled(self, rows: RDD[Any]) -> RDD[Any]:
        profile = self._data.requests.profile(self._spark)
        return rows if profile is None else rows.withResources(profile)

    def collected(self, rows: RDD[Any], shards: Sequence[int] | None = None) -> list[TaskRow]:
        return rows.collect() if shards is None else self._spark.sparkContext.runJob(rows, iter, shards)

    def persisted(self, rows: Any, stack: ExitStack) -> Any:
        rows.persist(StorageLevel.DISK_ONLY)
        stack.callback(_unpersist, rows)
        return rows

    def results(self, rows: RDD[Any]) -> list[TaskRow]:
        return rows.filter(is_result).collect()

    def pieces(self, rows: RDD[Any], absent: Sequence[int]) -> DataFrame:
        return self._spark.createDataFrame(rows.filter(partial(is_piece, absent)), PIECES, verifySchema=False)

    def fetched(self, reduced: DataFrame, pieces: int, shards: int) -> Iterator[TaskRow]:
        # All tasks reduce in parallel; then the driver fetches one task's result after the other.
        counts = [row.shard for row in reduced.select("shard").collect()]
        if counts != [shards] * pieces:
            raise ChunksLost
        yield from self._one_by_one(reduced.rdd, pieces, shards)

    def _one_by_one(self, rows: RDD[Any], pieces: int, shards: int) -> Iterator[Any]:
        count = 0  # not toLocalIterator of a DataFrame, which would hold all chunks in the driver's JVM
        for partition in range(rows.getNumPartitions()):
            for row in self._spark.sparkContext.runJob(rows, list, [partition]):
                if row.shard != shards:
                    raise ChunksLost
                count += 1
                yield row
        if count != pieces:
            raise ChunksLost

    def fetch_each(self, rows: RDD[Any], count: int) -> dict[int, Callable[[], Iterable[EachRow]]]:
        with cancelled_on_stop(self._session, uuid.uuid4().hex):
            results = rows.mapPartitionsWithIndex(_small_rows).collect()

        def fetch(partition: int) -> list[EachRow]:
            return self._spark.sparkContext.runJob(rows, list, [partition])

        return {index: partial(fetch, where) if row is None else partial(iter, [row]) for where, index, row in results}

    def share(self, packed: bytes) -> SharedValue:
        return self._session.share(packed)

    def free(self) -> None:
        for rdd in self._cached:
            rdd.unpersist()


def _small_rows(partition: int, rows: Iterable[EachRow]) -> Iterator[tuple[int, int, EachRow | None]]:
    return ((partition, row[0], row if len(row[1]) <= _SMALL else None) for row in rows)


def _unpersist(rows: Any) -> None:
    with suppress(*GONE):
        rows.unpersist()
