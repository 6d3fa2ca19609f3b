"""Rounds on Spark: ordinary tasks, so that dynamic allocation, speculation and preemption do no harm.

The rows are packed once, into a persisted DataFrame of blocks of tensors, in row-id order. A round sends one row a part
through the JVM, as tasks where the packed part is cached, and maps the part from files on the executor. Where they are
not, because it is the first round or the executor is a new one, a second job writes them from the blocks. The plan of a
round is always the same few steps, however many rounds there were.

Small results come to the driver, which reduces them. Large ones are cut into pieces, which are sorted by Spark and
reduced by tasks that hold a few pieces at a time: neither they nor the driver ever hold many copies of a model.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import torch
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl.errors import InvalidInput, MemberLost, Place
from sparkdl.feed.column_file import Layout
from sparkdl.feed.columns import Columns
from sparkdl.map_reduce import Mapped, RoundWork, Tensors, Tree, settle
from sparkdl.shipping import ship
from sparkdl.spark.columns import named, prepare
from sparkdl.spark.round_tasks import PACKED, PIECES, MapTask, PackTask, ReduceTask, drop, tensor_name
from sparkdl.state import pack_state
from sparkdl.tensors import DTYPES

_INLINE = 1 << 16  # bytes of a state that travels inside of the task
_DIRECT = 64 << 20  # bytes of results that the driver reduces


@contextmanager
def spark_jobs(
    spark: SparkSession, data: DataFrame, columns: Columns | Sequence[str] | None, *, parts: int | None, size: int
) -> Iterator[SparkJobs]:
    """See ``MapReducing.map_reduce``.

    Args:
        spark: the session.
        data: the rows.
        columns: what becomes what.
        parts: into how many parts they are dealt out; None leaves them in their partitions.
        size: tasks that reduce.
    """
    if not hasattr(data, "mapInArrow"):
        raise InvalidInput(f"data is of type {type(data).__name__}; expected a Spark DataFrame.")
    frame, wanted = prepare(data, columns)
    if parts is not None:
        key = wanted.client or wanted.row_id
        assert key is not None
        frame = frame.repartition(parts, named(key.name))
    plain = frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))
    packed = plain.mapInArrow(PackTask(wanted, tuple(frame.columns)).run, PACKED)
    packed = packed.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        jobs = SparkJobs(spark, packed, wanted, size)
        try:
            yield jobs
        finally:
            jobs.close()
    finally:
        packed.unpersist()


class SparkJobs:
    """See ``Jobs``."""

    def __init__(self, spark: SparkSession, packed: DataFrame, columns: Columns, size: int) -> None:
        self._spark, self._packed, self._columns, self._size = spark, packed, columns, size
        self._key = uuid.uuid4().hex
        self._layout: dict[str, Layout] = {}
        self._large = False
        self.parts = self._look()
        self._ready: set[int] = set()
        self._trigger = packed.where("block = 0").select("part")

    def _look(self) -> tuple[int, ...]:
        """Rows of the parts, once the data are packed; raises what is wrong with them."""
        found = sorted(self._packed.where("block = 0").select("part", "rows", "about").collect())
        if not found:
            raise InvalidInput("the data has no rows; expected at least one.", place=Place("feed"))
        owner: dict[str, int] = {}
        for part, _, about in found:
            told = json.loads(about)
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
        rows = {part: count for part, count, _ in found}
        parts = tuple(rows.get(part, 0) for part in range(max(rows) + 1))
        if not sum(parts):
            raise InvalidInput("the data has no rows; expected at least one.", place=Place("feed"))
        return parts

    def run(self, work: RoundWork, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """See ``Jobs``."""
        packed = pack_state(state)
        cut = len(packed) * len(self.parts) > _DIRECT
        broadcast = self._spark.sparkContext.broadcast(packed) if len(packed) > _INLINE else None
        task = MapTask(
            ship(work),
            packed if broadcast is None else broadcast,
            self._key,
            self._columns,
            self.parts,
            self._layout,
            cut,
        )
        try:
            return self._run(work, task, number)
        except (PySparkException, Py4JError) as error:
            raise MemberLost(f"Spark gave up round {number}: {_first_lines(error)}", place=Place("map")) from error
        finally:
            if broadcast is not None:
                broadcast.destroy()

    def _run(self, work: RoundWork, task: MapTask, number: int) -> tuple[Tensors, list[Any]]:
        collected = _Collected(work)
        wanted = set(range(len(self.parts)))
        if self._ready:
            self._collect(self._trigger.mapInArrow(task.run, PIECES), task, collected)
        absent = sorted(wanted - set(collected.results))
        if absent:
            # The pieces of a part that is reduced apart from the others would not fit into the tree.
            chosen = self._packed if task.cut else self._packed.where(F.col("part").isin(absent))
            collected = _Collected(work) if task.cut else collected
            self._collect(chosen.mapInArrow(task.build, PIECES), task, collected)
        self._ready = wanted
        settle(list(collected.results.values()), number)
        return collected.tensors(), [collected.results[part].note for part in sorted(wanted)]

    def _collect(self, pieces: DataFrame, task: MapTask, collected: _Collected) -> None:
        if task.cut:
            sorted_ = pieces.repartition(self._size, "piece").sortWithinPartitions("piece", "part")
            pieces = sorted_.mapInArrow(ReduceTask(task.work).run, PIECES)
        for row in pieces.collect():
            collected.take(*row)

    def close(self) -> None:
        """Delete the files on the executors, as far as they are there."""
        with suppress(PySparkException, Py4JError):
            self._trigger.mapInArrow(partial(drop, key=self._key), PIECES).collect()


class _Collected:
    """What has come of a round."""

    def __init__(self, work: RoundWork) -> None:
        self._reduce = work.reduce
        self._payloads: dict[int, dict[int, bytes]] = {}
        self._pieces: dict[int, tuple[str, str, bytes]] = {}

    def take(self, part: int, piece: int, name: str, dtype: str, payload: bytes) -> None:
        """Take a row."""
        if piece >= 0:
            self._pieces[piece] = name, dtype, payload
        elif name != "missing":
            self._payloads.setdefault(part, {})[-piece] = payload

    @property
    def results(self) -> dict[int, Mapped]:
        """Part -> what came of it."""
        return {
            part: replace(cloudpickle.loads(b"".join(payload for _, payload in sorted(pieces.items()))))
            for part, pieces in self._payloads.items()
        }

    def tensors(self) -> Tensors:
        """What all parts come to."""
        if not self._pieces:
            tree = Tree(self._reduce)
            for _, found in sorted(self.results.items()):
                tree.push(found.tensors)
            return tree.result()
        flat: dict[str, tuple[list[int], str, bytearray]] = {}
        for _, (named_, dtype, payload) in sorted(self._pieces.items()):
            name, shape = tensor_name(named_)
            flat.setdefault(name, (shape, dtype, bytearray()))[2].extend(payload)
        return {
            name: (torch.frombuffer(data, dtype=DTYPES[dtype]) if data else torch.empty(0, dtype=DTYPES[dtype])).view(
                shape
            )
            for name, (shape, dtype, data) in flat.items()
        }


def _first_lines(error: Exception) -> str:
    """The part of Spark's message that says why, without the JVM's stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith("at ") and "Driver stacktrace" not in line]
    return " ".join(kept[:3])[:1000]
