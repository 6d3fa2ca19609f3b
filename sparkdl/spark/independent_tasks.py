"""Tasks that are not reduced: one for each index, over all rows or over its part.

Every task that wants all rows is a partition of its own, which reads the packed blocks of all parts one behind the
other, wherever Spark keeps them, and writes them to a disk of its executor. The next one there finds them. So nothing
is shuffled, and the driver sees no row. It is one ordinary job: what is lost is run again, and nothing else.
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
from sparkdl.cluster.tasks import Mapped, mapped
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import Fingerprint, total
from sparkdl.data.shard import Part, numbers
from sparkdl.data.shard_store import Store, empty_part
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput, MemberLost, Place
from sparkdl.io.threads import torch_threads
from sparkdl.spark.error_messages import first_lines
from sparkdl.spark.executor_tasks import CHANGED, Sent, as_packed, complete, local_directory, received, store_of
from sparkdl.spark.jvm import GONE, JVM_ERRORS
from sparkdl.spark.python_worker import spare_imports
from sparkdl.telemetry.task_recorder import Reporting

Found = tuple[int, bytes]
"""Index and the packed ``Mapped``."""

_SMALL = 1 << 14  # bytes of a result that comes to the driver as soon as its task ends, and no executor can lose


@dataclass(frozen=True)
class EachTask:
    """Maps all rows, or those of a part.

    Attributes:
        work: the pickled ``RoundWork``, or a broadcast of it.
        key: of the packed data; their files on the executors lie under it.
        columns: what the tensors are for.
        parts: rows of every part.
        fingerprints: of every part's rows, as they were when they were packed.
        layout: of columns, for parts without rows.
        indices: what each partition is to be: of tasks with all rows in their order, of parts themselves.
        attempts: as often as Spark tries a task before it gives all of them up.
        reporting: where it tells of itself.
    """

    work: Sent
    key: str
    columns: Columns
    parts: tuple[int, ...]
    fingerprints: tuple[str, ...]
    layout: Mapping[str, Layout]
    indices: tuple[int, ...]
    attempts: int
    reporting: Reporting = field(default_factory=Reporting)

    def whole(self, partition: int, rows: Iterable[Any]) -> Iterator[Found]:
        """Map all rows, whose blocks come."""
        spare_imports()
        number = len(self.parts)  # all of them lie beside the parts, as one more
        store, remaining = store_of(self.key, number), iter(rows)
        trouble = self._written(store, number, remaining)
        for _ in remaining:
            continue

        def every() -> Part:
            if trouble is not None:
                raise trouble
            part = store.open(number, self.columns, self.parts, self.layout)
            wanted = total([Fingerprint.parse(each) for each in self.fingerprints if each])
            if total([Fingerprint.parse(store.fingerprint(part))]) != wanted:
                raise InvalidInput(CHANGED)
            return _alone(part)

        yield self._mapped(partition, every)

    def _written(self, store: Store, number: int, rows: Iterator[Any]) -> InvalidInput | None:
        """Write all rows, unless they are here; what is wrong with those that come."""
        blocks = complete(self._as_packed(rows), sum(self.parts))
        try:
            with store.alone(number):  # tasks of one executor would write them once each, all at a time
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
        """Blocks of parts, each of which says what it was packed of.

        The rows of all parts together do not tell whether those of one have come back in another order, with which the
        numbers that Spark gives them would be others.

        Raises:
            InvalidInput: a part was packed again, of other rows or in another order.
        """
        for row in rows:
            if row.block == 0 and json.loads(row.about).get("fingerprint") != self.fingerprints[row.part]:
                raise InvalidInput(CHANGED)
            yield row

    def part(self, partition: int, rows: Iterable[Any]) -> Iterator[Found]:
        """Map the part whose blocks come, if it is wanted."""
        spare_imports()
        if partition not in self.indices:
            for _ in rows:
                continue
            return
        store, known = store_of(self.key, partition), (self.columns, self.parts, self.layout)
        blocks = complete(rows, self.parts[partition])
        if self.parts[partition] and not as_packed(store, partition, known, self.fingerprints[partition]):
            with store.writing(partition) as append:
                for row in blocks:
                    append(row.payload)
        for _ in blocks:
            continue

        def own() -> Part:
            part = store.open(partition, *known) if self.parts[partition] else empty_part(partition, *known)
            if part.rows and store.fingerprint(part) != self.fingerprints[partition]:
                raise InvalidInput(CHANGED)
            return part

        yield self._mapped(self.indices.index(partition), own)

    def _mapped(self, position: int, part: Callable[[], Part]) -> Found:
        """What comes of a part; a task that raised would end the other ones as well."""
        context, index = TaskContext.get(), self.indices[position]
        attempt = 0 if context is None else context.attemptNumber()
        try:
            with torch_threads(None if context is None else context.cpus()):
                work = received(self.work)
                found = mapped(work, index, part(), index=index, reporting=self.reporting, attempt=attempt)
        except InvalidInput as error:
            found = Mapped.of_error(index, error)
        except OSError as error:
            if context is None or attempt + 1 < self.attempts:
                raise
            found = Mapped.of_error(index, error)
        return index, found.packed()


def _alone(part: Part) -> Part:
    """All rows as the only part, in the order of their ids."""
    identity = part.columns.row_id
    ids = None if identity is None else numbers(part.tensors, identity.name)
    spool = Spool(part.columns, directory=local_directory(part.index))
    order = None if ids is None else spool.order(ids)
    return replace(part, index=0, count=1, parts=(part.rows,), order=order)


def run_each(context: SparkContext, packed: RDD[Any], task: EachTask, *, whole: bool) -> Iterator[Found]:
    """Run the tasks, all of them as one job, and then fetch what came of one after the other, where it is large.

    Raises:
        MemberLost: Spark gave up.
        Stopped: the process was asked to stop, and the tasks were cancelled.
    """
    if not task.indices:
        return
    if whole:
        every = packed.coalesce(1)
        rows = context.union([every] * len(task.indices)).mapPartitionsWithIndex(task.whole)
    else:
        rows = packed.mapPartitionsWithIndex(task.part)
    rows.persist(StorageLevel.DISK_ONLY)  # the driver takes one at a time, and nothing is run again for that
    try:
        with _cancelled_by_stop(context, task.key):
            told = {index: (where, found) for where, index, found in rows.mapPartitionsWithIndex(_where).collect()}
        for index in task.indices:
            where, found = told[index]
            yield from context.runJob(rows, list, [where]) if found is None else [found]
    except JVM_ERRORS as error:
        if stop_requested() is not None:
            raise stopped("its tasks were cancelled, but for what finished ones have kept") from error
        raise MemberLost(f"Spark gave up the tasks: {first_lines(error)}", place=Place("map")) from error
    finally:
        with suppress(*GONE):
            rows.unpersist()


def attempts(context: SparkContext) -> int:
    """As often as Spark tries a task."""
    master = context.master or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        found = re.fullmatch(r"local\[[^,]+, *(\d+)\]", master)
        return int(found[1]) if found else 1
    return int(context.getConf().get("spark.task.maxFailures", "4") or 4)


def _where(partition: int, found: Iterable[Found]) -> Iterator[tuple[int, int, Found | None]]:
    """Where a result is, and the result if it is small."""
    return ((partition, each[0], each if len(each[1]) <= _SMALL else None) for each in found)


@contextmanager
def _cancelled_by_stop(context: SparkContext, tag: str) -> Iterator[None]:
    """A block whose jobs are cancelled when the process is asked to stop."""
    over = threading.Event()

    def watch() -> None:
        while stop_requested() is None:
            if over.wait(POLL):
                return
        while not over.wait(POLL):  # again, for a job that had not yet begun
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
