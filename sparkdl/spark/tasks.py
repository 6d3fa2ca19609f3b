"""Rounds on Spark: ordinary tasks, so that dynamic allocation, speculation and preemption do no harm.

The rows are packed once, into a persisted RDD of blocks of tensors, in row-id order; the task that packs a part also
writes it to a disk of its executor. Of each part one small row is cached there besides. A round is a job over
these rows alone, so its tasks run where they are cached, and map the part from its files. An executor that took another
one's task and has no such files says so, and a second job maps what is missing from the blocks, and leaves the files.
The plan of a round is always the same few steps, however many rounds there were.

Small results come to the driver, which reduces them. Large ones are cut into pieces, which are sorted by Spark and
reduced by tasks that hold a few pieces at a time, and come to the driver some at a time: neither they nor the driver
ever hold many copies of a model.
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

from sparkdl.cluster.tasks import Mapped, RoundWork, Tensors, settle, tell
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.errors import InvalidInput, MemberLost, Place
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state
from sparkdl.spark import tensor_chunks
from sparkdl.spark.columns import named, prepare
from sparkdl.spark.error_messages import first_lines
from sparkdl.spark.executor_tasks import PACKED, MapTask, PackTask, ReduceTask, Sent, drop, heads
from sparkdl.spark.independent_tasks import EachTask, attempts, run_each
from sparkdl.spark.jvm import GONE, JVM_ERRORS, described
from sparkdl.spark.resources import find_slots
from sparkdl.spark.tensor_chunks import PIECES, Results, assembled
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.task_recorder import Reporting

Held = TypeVar("Held", RDD[Any], DataFrame)

_INLINE = 1 << 16  # bytes of a state that travels inside of the task
_DIRECT = 64 << 20  # bytes of results that the driver reduces
# Bytes that come to the driver at a time, about, of what executors have reduced; by chance several times as many. The
# driver's JVM, of 1 GiB by default, wants each lot in one piece of memory, beside the weights that it has sent.
_REDUCED = 4 << 20
_TRIES = 4  # as Spark's spark.task.maxFailures


class _Lost(Exception):
    """Results were lost between two jobs of a round."""


@contextmanager
def spark_jobs(
    spark: SparkSession,
    data: DataFrame,
    columns: Columns | Sequence[str] | None,
    *,
    parts: int | None,
    size: int,
    reporting: Reporting,
    title: str,
    listener: Callable[[Event], None] | None = None,
) -> Iterator[SparkJobs]:
    """See ``MapReducing.map_reduce``.

    Args:
        spark: the session.
        data: the rows.
        columns: what becomes what.
        parts: into how many parts they are dealt out; None leaves them in their partitions, and keeps two copies of
            what is packed.
        size: tasks that reduce, at least.
        reporting: where tasks tell of themselves.
        title: what the Spark UI calls the jobs.
        listener: hears which tasks have lost events; None for nobody.
    """
    if not hasattr(data, "mapInArrow"):
        raise InvalidInput(f"data is of type {type(data).__name__}; expected a Spark DataFrame.")
    frame, wanted = prepare(data, columns)
    if parts is not None:
        key = wanted.client or wanted.row_id
        assert key is not None
        frame = frame.repartition(parts, named(key.name))
    else:
        # Rows that the driver holds, as those of a pandas table, are computed there by Spark's optimizer, and have the
        # number of partition 0, all of them. A sample of all rows is none, but that the optimizer does not know.
        frame = frame.sample(fraction=1.0, seed=0)
    copies = 2 if parts is None else 1
    jobs = SparkJobs(spark, frame, wanted, size, copies=copies, reporting=reporting, title=title, listener=listener)
    try:
        with described(spark, f"{title}: pack the rows"):
            jobs.look()
        yield jobs
    finally:
        jobs.close()


class SparkJobs:
    """See ``Jobs``.

    Args:
        spark: the session.
        frame: the rows, in partitions that become the parts.
        columns: what becomes what.
        size: tasks that reduce, at least.
        copies: of what is packed, 1 or 2, on different executors. With one copy, what an executor has packed goes with
            it and is computed again; where shuffled rows have gone with it, Spark then runs the whole stage again, with
            tasks that run on other executors and may take long.
        reporting: where tasks tell of themselves; None for nowhere.
        title: what the Spark UI calls the jobs, with the round behind it.
        listener: hears which tasks have lost events; None for nobody.
    """

    def __init__(
        self,
        spark: SparkSession,
        frame: DataFrame,
        columns: Columns,
        size: int,
        *,
        copies: int = 1,
        reporting: Reporting | None = None,
        title: str = "sparkdl",
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.parts: tuple[int, ...] = ()
        self._level = StorageLevel.DISK_ONLY_2 if copies == 2 else StorageLevel.DISK_ONLY
        self._spark, self._columns, self._size = spark, columns, size
        self._reporting, self._title, self._listener = reporting or Reporting(), title, listener
        self._key = uuid.uuid4().hex
        self._layout: dict[str, Layout] = {}
        self._works: dict[type, tuple[bytes, Any]] = {}  # of the last large one of a kind: its digest, its broadcast
        self._large: dict[type, bool] = {}  # whether results of a kind of work have to be cut, as far as is known
        # mapInArrow looks columns up by name, and a dot in a name means a field to it.
        plain = frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))
        pack = PackTask(columns, tuple(frame.columns), self._key)
        self._blocks = plain.withColumn("part", F.spark_partition_id()).mapInArrow(pack.run, PACKED)
        self._kept: list[RDD[Any]] = []

    def look(self) -> None:
        """Pack the data.

        Raises:
            InvalidInput: they cannot be used.
        """
        # On disk: they are read again only when an executor has no files of a part, or has gone. An RDD, since Spark
        # writes one of bytes as it comes, but of a DataFrame's batches it would hold a hundred in memory.
        self._packed = self._keep(self._blocks.rdd, self._level)
        self._triggers = self._keep(self._packed.mapPartitions(heads), StorageLevel.MEMORY_AND_DISK)
        found = sorted(self._triggers.collect())
        owner: dict[str, int] = {}
        marks: dict[int, str] = {}
        each_told = [json.loads(about) for _, _, about in found]
        for (part, _, _), told in zip(found, each_told, strict=True):
            if "trouble" in told:
                raise InvalidInput(told["trouble"], place=Place("feed", part))
            for name, (dtype, shape) in told["layout"].items():
                own = dtype, tuple(shape)
                if self._layout.setdefault(name, own) != own:
                    raise InvalidInput(
                        f"column {name!r} has rows of {self._layout[name]} in part {owner[name]} and of {own} in part "
                        f"{part}."
                    )
                owner.setdefault(name, part)
            marks[part] = told["fingerprint"]
        rows = {part: count for part, count, _ in found}
        if not sum(rows.values()):
            raise InvalidInput("the data has no rows; expected at least one.", place=Place("feed"))
        count = range(self._triggers.getNumPartitions())
        self.parts = tuple(rows.get(part, 0) for part in count)
        self._fingerprints = tuple(marks.get(part, "") for part in count)

    def run(self, work: RoundWork, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """See ``Jobs``."""
        shipped, packed = self._shipped(work), pack_state(state)
        large = self._large.setdefault(type(work), len(packed) * len(self.parts) > _DIRECT)
        broadcast = self._spark.sparkContext.broadcast(packed) if len(packed) > _INLINE else None
        sent: Any = packed if broadcast is None else broadcast
        del packed  # a large one is in a file now
        try:
            for _ in range(_TRIES):
                task = MapTask(
                    work=shipped,
                    state=sent,
                    key=self._key,
                    columns=self._columns,
                    parts=self.parts,
                    fingerprints=self._fingerprints,
                    layout=self._layout,
                    most=_DIRECT,
                    cut=large,
                    reporting=replace(self._reporting, number=number),
                )
                with described(self._spark, f"{self._title}: round {number}, {type(work).__name__}"):
                    found = (self._apart if large else self._together)(work, task, number)
                if found is not None:
                    return found
                large = self._large[type(work)]
            raise MemberLost(f"results of round {number} were lost {_TRIES} times.", place=Place("reduce"))
        except JVM_ERRORS as error:
            raise MemberLost(f"Spark gave up round {number}: {first_lines(error)}", place=Place("map")) from error
        finally:
            if broadcast is not None:
                with suppress(*GONE):
                    broadcast.destroy()

    def each(self, work: RoundWork, indices: Sequence[int], *, whole: bool) -> Iterator[Mapped]:
        """See ``Jobs``."""
        task = EachTask(
            self._shipped(work),
            self._key,
            self._columns,
            self.parts,
            self._fingerprints,
            layout=self._layout,
            indices=tuple(indices),
            attempts=attempts(self._spark.sparkContext),
            reporting=self._reporting,
        )
        with described(self._spark, f"{self._title}: {len(indices)} tasks, {type(work).__name__}"):
            for _, packed in run_each(self._spark.sparkContext, self._packed, task, whole=whole):
                found = Mapped.unpacked(packed)
                tell([found], self._listener)
                yield found

    def _shipped(self, work: RoundWork) -> Sent:
        """The work as tasks get it. A large one, such as an objective with a trained model, is sent once."""
        shipped = ship(work)
        if len(shipped) <= _INLINE:
            return shipped
        digest, (known, broadcast) = hashlib.sha256(shipped).digest(), self._works.get(type(work), (None, None))
        if known != digest:
            if broadcast is not None:
                broadcast.destroy()
            broadcast = self._spark.sparkContext.broadcast(shipped)
            self._works[type(work)] = digest, broadcast
        return broadcast

    def _together(self, work: RoundWork, task: MapTask, number: int) -> tuple[Tensors, list[Any]] | None:
        """A round whose results the driver reduces; None if they are too large for that, or a part was lost."""
        results = Results(len(self.parts))
        results.take(self._triggers.mapPartitionsWithIndex(task.run).collect())
        if results.absent:
            results.take(self._spark.sparkContext.runJob(self._packed, task.build, results.absent))
        tell(results.found, self._listener)
        settle(results.found, number)
        self._large[type(work)] = results.large
        return None if results.large or results.absent else (results.reduced(work), results.notes)

    def _apart(self, work: RoundWork, task: MapTask, number: int) -> tuple[Tensors, list[Any]] | None:
        """A round whose results executors reduce; None if some of them were lost before they were."""
        results = Results(len(self.parts))
        with ExitStack() as stack:
            # Held on disk, so that nothing is mapped twice if a part is absent, and nothing reduced if one has failed.
            rows = _held(self._triggers.mapPartitionsWithIndex(task.run), stack)
            results.take(rows.mapPartitions(tensor_chunks.results).collect())
            absent = results.absent
            # What was lost and is mapped again may turn up after all, and must not count beside what was built of it.
            pieces = rows.mapPartitions(partial(tensor_chunks.pieces, absent))
            if absent:
                built = _held(self._packed.mapPartitionsWithIndex(partial(task.build_some, absent)), stack)
                results.take(built.mapPartitions(tensor_chunks.results).collect())
                pieces = pieces.union(built.mapPartitions(partial(tensor_chunks.pieces, ())))
            tell(results.found, self._listener)
            settle(results.found, number)
            if results.absent:
                return None
            self._large[type(work)] = results.pieces > 0
            if not results.pieces:
                return results.reduced(work), results.notes
            return self._reduced(pieces, task, results, stack)

    def _reduced(
        self, rows: RDD[Any], task: MapTask, results: Results, stack: ExitStack
    ) -> tuple[Tensors, list[Any]] | None:
        """What executors make of the pieces; None if an executor went away, and pieces with it."""
        pieces = self._spark.createDataFrame(rows, PIECES, verifySchema=False)
        tasks = max(self._size, -(-results.bytes // _REDUCED))
        ordered = pieces.repartition(tasks, "piece").sortWithinPartitions("piece", "part")
        reduced = _held(ordered.mapInArrow(ReduceTask(task.work).run, PIECES), stack)
        # All tasks reduce at the same time; after that the driver takes one task's result after the other.
        counts = [row.part for row in reduced.select("part").collect()]
        if counts != [len(self.parts)] * results.pieces:
            return None
        try:
            return assembled(self._one_by_one(reduced.rdd, results.pieces)), results.notes
        except _Lost:
            return None

    def _one_by_one(self, rows: RDD[Any], pieces: int) -> Iterator[Any]:
        """The pieces, a partition at a time. ``toLocalIterator`` of a DataFrame keeps all in the driver's JVM.

        Raises:
            _Lost: a piece is not of all parts: it was reduced again, when some were no longer there.
        """
        count = 0
        for part in range(rows.getNumPartitions()):
            for row in self._spark.sparkContext.runJob(rows, list, [part]):
                if row.part != len(self.parts):
                    raise _Lost
                count += 1
                yield row
        if count != pieces:
            raise _Lost

    def _keep(self, rdd: RDD[Any], level: StorageLevel) -> RDD[Any]:
        """Persist it until the jobs are closed."""
        self._kept.append(rdd.persist(level))
        return self._kept[-1]

    def close(self) -> None:
        """Delete the files on the executors, and what Spark keeps.

        A task for each slot reaches every executor that is idle. Files of a busy one go with it, as Spark's own do.
        """
        context = self._spark.sparkContext
        with suppress(*GONE):
            slots = max(2, find_slots(self._spark).now or 0)
            context.parallelize(range(slots), slots).foreachPartition(partial(drop, self._key))
        with suppress(*GONE):
            for each in self._kept:
                each.unpersist()
            for _, broadcast in self._works.values():
                broadcast.destroy()
            self._works.clear()


def _held(data: Held, stack: ExitStack) -> Held:
    """The data, on executors' disks until the end of the block."""
    data.persist(StorageLevel.DISK_ONLY)
    stack.callback(data.unpersist)
    return data
