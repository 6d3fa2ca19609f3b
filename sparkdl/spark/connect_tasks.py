"""Jobs of rounds in a session of Spark Connect, which has no RDDs: each is a query over persisted views.

    sparkdl_blocks_<key>   the packed rows, a row for each block
    sparkdl_shards_<key>   one small row for each shard with rows; a round is a query over this view
    sparkdl_rows_<id>      what tasks return, until its round ends

A view names a plan that the server keeps, so that a query does not send the tasks of the views it reads. Spark caches a
view in its partitions, in pieces of about 4 MiB, and a task knows its shard by the number of its partition.

States and works travel inside the query, or, if they are large, in a file of the run's directory.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from sparkdl.errors import ErrorContext, InvalidInput, SessionLost, WorkerLost
from sparkdl.io import files
from sparkdl.spark.error_messages import losing_session
from sparkdl.spark.executor_tasks import FIRST, MapTask, PackedFrame, PartitionTask, first_row
from sparkdl.spark.independent_tasks import CutTask, EachRow, IndependentTask
from sparkdl.spark.job_watch import cancelled_on_stop
from sparkdl.spark.session import session_of
from sparkdl.spark.session.errors import GONE
from sparkdl.spark.session.shared_bytes import InlineBytes, SharedFile, SharedValue
from sparkdl.spark.tensor_chunks import PIECES, RESULT_CHUNK, ChunksLost, TaskRow

_INLINE = 16 << 20  # bytes of a state or a work in a query, if a file can hold more
_SMALL = 1 << 14  # bytes of a result that the client collects when its task ends, so that no executor can lose it
_DIRECT = 16 << 20  # bytes of all results that it collects then
_FETCHED = 16  # rows of 4 MiB of a query that fetches chunks
_TRIES = 4  # as Spark's spark.task.maxFailures
# As PIECES; the client would ask the server to parse a string, once for each query.
_TYPES = {"int": IntegerType(), "string": StringType(), "binary": BinaryType()}
_SCHEMA = StructType([StructField(name, _TYPES[kind]) for name, kind in map(str.split, PIECES.split(", "))])


class ConnectJobs:
    """``sparkdl.spark.task_runner.ShardJobs`` of a session of Spark Connect."""

    def __init__(self, spark: SparkSession, data: PackedFrame) -> None:
        self._spark, self._session, self._data = spark, session_of(spark), data
        self._views, self.lost = ExitStack(), False

    def persist_blocks(self) -> tuple[int, list[tuple[int, int, str]]]:
        level = StorageLevel.DISK_ONLY if self._data.shuffled else StorageLevel.DISK_ONLY_2
        self._packed = self._view(self._data.blocks, f"sparkdl_blocks_{self._data.key}", level, self._views)
        first = self._packed.where("block = 0").select("shard", "rows", "about")
        memory = StorageLevel.MEMORY_AND_DISK_DESER
        self._triggers = self._view(first, f"sparkdl_shards_{self._data.key}", memory, self._views)
        rows = self._query(self._triggers.mapInArrow(first_row, FIRST))
        return len(rows), [(row.shard, row.rows, row.about) for row in rows if row.about]

    def _view(self, rows: DataFrame, name: str, level: StorageLevel, stack: ExitStack) -> DataFrame:
        with self._noticing_loss():
            rows.createTempView(name)
            stack.callback(self._drop, name)
            return self._spark.table(name).persist(level)

    def _drop(self, name: str) -> None:
        with suppress(*GONE, SessionLost):
            if not self.lost:  # Spark's client would try for ten minutes
                with self._noticing_loss():
                    self._spark.table(name).unpersist()
                    self._spark.catalog.dropTempView(name)

    def _query(self, rows: DataFrame, *, stops: bool = False) -> list[Row]:
        tag = f"sparkdl-{uuid.uuid4().hex}"
        # A stop lets a round end, as it has to be saved, and cancels members and trials.
        block = cancelled_on_stop(self._session, tag) if stops else self._session.tagged(tag)
        with self._noticing_loss(), block:
            try:
                return self._session.collect(rows, tag)
            finally:
                if self._session.runs(tag):  # as after Ctrl-C
                    self._session.cancel(tag)

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            with losing_session():
                yield
        except SessionLost:
            self.lost = True
            raise

    def _mapped(self, rows: DataFrame, task: PartitionTask) -> DataFrame:
        return rows.mapInArrow(task.run, _SCHEMA, profile=self._data.requests.profile(self._spark))

    def map_shards(self, task: Callable[[int, Iterable[Any]], Iterator[TaskRow]]) -> DataFrame:
        return self._mapped(self._triggers, PartitionTask(task))

    def build_shards(self, task: MapTask, absent: Sequence[int]) -> DataFrame:
        blocks = self._packed.where(F.col("shard").isin([*absent]))
        return self._mapped(blocks, PartitionTask(partial(task.build_some, tuple(absent))))

    def each(self, task: IndependentTask, *, all_rows: bool, stored: bool) -> DataFrame:
        if not all_rows:
            return self._mapped(self._packed, PartitionTask(CutTask(task.shard).run))
        every = CutTask(partial(task.all_rows, stored=stored))
        if stored:
            return self._mapped(self._spark.range(0, 1, 1, 1), PartitionTask(every.run))
        # Two more partitions: Spark merges a union of frames of one partition each into one partition.
        copies, others = [self._packed.coalesce(1)] * len(task.indices), self._spark.range(0, 2, 1, 2)
        nothing = others.selectExpr("-1 shard", "0 block", "0L rows", "'' about", "cast('' as binary) payload")
        return self._mapped(_union([*copies, nothing]), PartitionTask(every.run, count=len(task.indices)))

    def collected(self, rows: DataFrame, shards: Sequence[int] | None = None) -> list[TaskRow]:
        return [tuple(row) for row in self._query(rows)]

    def persisted(self, rows: Any, stack: ExitStack) -> Any:
        return self._view(rows, f"sparkdl_rows_{uuid.uuid4().hex}", StorageLevel.DISK_ONLY, stack)

    def results(self, rows: DataFrame) -> list[TaskRow]:
        return self.collected(rows.where(F.col("piece") == RESULT_CHUNK))

    def pieces(self, rows: DataFrame, absent: Sequence[int]) -> DataFrame:
        pieces = rows.where(F.col("piece") != RESULT_CHUNK)
        return pieces.where(~F.col("shard").isin([*absent])) if absent else pieces

    def fetched(self, reduced: DataFrame, pieces: int, shards: int) -> Iterator[TaskRow]:
        # All tasks reduce in parallel; then the client fetches a few chunks at a time.
        counts = [row.shard for row in self._query(reduced.select("shard"))]
        if counts != [shards] * pieces:
            raise ChunksLost
        for first in range(0, pieces, _FETCHED):
            rows = self.collected(reduced.where(F.col("piece").between(first, first + _FETCHED - 1)))
            if [row[0] for row in rows] != [shards] * min(_FETCHED, pieces - first):
                raise ChunksLost
            yield from rows

    def fetch_each(self, rows: DataFrame, count: int) -> dict[int, Callable[[], Iterable[EachRow]]]:
        limit = max(_SMALL, _DIRECT // count)  # each further query takes a tenth of a second
        small = F.when((F.col("piece") == 0) & (F.length("payload") <= limit), F.col("payload"))
        first = self._query(rows.where("piece = 0").select("shard", "name", small.alias("payload")), stops=True)
        ended = {row.shard: (row.name, row.payload) for row in first}

        def fetch(index: int) -> Iterator[EachRow]:
            name, payload = ended[index]
            if payload is not None and CutTask.count(name) == 1:
                yield index, bytes(payload)
            else:
                yield index, self._joined(rows, index, name)

        return {index: partial(fetch, index) for index in ended}

    def _joined(self, rows: DataFrame, index: int, name: str) -> bytes:
        for _ in range(_TRIES):
            chunks = list[TaskRow]()
            for first in range(0, CutTask.count(name), _FETCHED):
                some = rows.where(F.col("shard") == index).where(F.col("piece").between(first, first + _FETCHED - 1))
                chunks += self.collected(some)
            names = {chunk[2] for chunk in chunks}
            if names == {name}:
                return b"".join(payload for *_, payload in sorted(chunks))
            name = chunks[-1][2]  # an executor was lost, and Spark ran the task again
        raise WorkerLost(f"the result of task {index} was lost {_TRIES} times.", context=ErrorContext("map", index))

    def share(self, packed: bytes) -> SharedValue:
        # A query has a work and a state.
        directory, limit = self._data.directory, (self._session.query_limit() or 0) // 2
        if len(packed) <= (limit if directory is None else _INLINE):
            return InlineBytes(packed)
        if directory is None:
            raise InvalidInput(
                f"the weights or the model of a round take {len(packed) / 1e6:.0f} MB, and a query of Spark Connect "
                f"carries at most {limit / 1e6:.0f} MB. Set runDir to a folder that this process and the executors "
                "share, or use a classic session."
            )
        path = files.absolute(files.join(directory, f"shared/{uuid.uuid4().hex}"))
        files.write(path, packed)
        return SharedFile(path)

    def free(self) -> None:
        self._views.close()


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """The frames' partitions in order, as a balanced tree: the server limits the depth of a plan."""
    half = len(frames) // 2
    return _union(frames[:half]).union(_union(frames[half:])) if half else frames[0]
