"""Rounds on this machine: in this process, or in processes that take one shard after the other."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.tasks import MapReduce, TaskResult, Tensors, TreeReducer, emit, mapped, raise_on_failure
from sparkdl.cluster.worker_process import WorkerProcess
from sparkdl.data.batch import Input
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.data.shard import Shard
from sparkdl.data.shard_store import ShardStore, pack
from sparkdl.data.spool import Spool
from sparkdl.data.tables import Batches, by_client, split_rows
from sparkdl.errors import ErrorContext, InvalidInput, WorkerLost
from sparkdl.io.pickling import ship
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.task_recorder import Reporting

_TRIES = 4  # as Spark's spark.task.maxFailures

Processes = Callable[[], AbstractContextManager[list[WorkerProcess]]]
"""Yields the processes of a round, all of them alive."""


class InlineTaskRunner:
    """``TaskRunner`` that map every shard in this process.

    Args:
        parts: the shards.
        whole: returns all rows as one shard; None if no task needs it.
        reporting: where tasks report their events; None for nowhere.
    """

    def __init__(
        self, parts: list[Shard], whole: Callable[[], Shard] | None = None, reporting: Reporting | None = None
    ) -> None:
        self.parts = tuple(part.rows for part in parts)
        self._parts, self._whole, self._reporting = parts, whole, reporting or Reporting()

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Map all shards in this process."""
        shipped, packed, tree = ship(work), pack_state(state), TreeReducer(work.reduce)
        notes = []
        reporting = replace(self._reporting, number=number)
        for part in self._parts:
            found: TaskResult = mapped(shipped, unpack_state(packed), part, reporting=reporting)
            raise_on_failure([found], number)
            tree.push(found.tensors)
            notes.append(found.note)
        return tree.result(), notes

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run all tasks in this process."""
        shipped, every = ship(work), self._all() if all_rows else None
        found = [
            mapped(shipped, index, every or self._parts[index], index=index, reporting=self._reporting)
            for index in indices
        ]
        yield from found

    def _all(self) -> Shard:
        if self._whole is None:
            raise InvalidInput("all rows were asked for, and these parts were given without a way to have them as one.")
        return self._whole()


@contextmanager
def inline_jobs(
    data: Any, columns: Columns | Sequence[str] | None, parts: int, *, reporting: Reporting
) -> Iterator[InlineTaskRunner]:
    """Divide the data into shards for rounds in this process; arguments as for ``Cluster.map_reduce``."""
    yield InlineTaskRunner(dealt(data, columns, parts), partial(_whole, data, columns, parts), reporting)


@contextmanager
def process_jobs(
    processes: Processes,
    data: Any,
    columns: Columns | Sequence[str] | None,
    parts: int,
    *,
    threads: int,
    reporting: Reporting,
    listener: Callable[[Event], None] | None,
) -> Iterator[ProcessTaskRunner]:
    """Divide the data into shards on disk for rounds in processes; arguments as for ``Cluster.map_reduce``."""
    found = dealt(data, columns, parts)
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        store = ShardStore(Path(folder) / "parts")
        for part in found:
            store.write(part.index, pack(part))
        # Empty shards were sealed with the layout of the others, so any shard has it.
        layout = {name: _layout(tensor) for name, tensor in found[0].tensors.items()}
        rows = tuple(part.rows for part in found)
        task = _Task(folder, found[0].columns, rows, layout, threads, reporting)
        yield ProcessTaskRunner(processes, task, partial(_whole, data, columns, parts), listener)


def _whole(data: Any, columns: Columns | Sequence[str] | None, count: int) -> Shard:
    """All rows as one shard; without ids, in the order of the shards."""
    tables, wanted = split_rows(data, columns, count)
    assert wanted is not None  # dealt() has raised if there are no data
    return _sealed([_spooled(list(itertools.chain.from_iterable(tables)), wanted, 0)])[0]


def _layout(rows: Input) -> Layout:
    values = rows if isinstance(rows, Tensor) else rows.values
    return str(values.dtype).removeprefix("torch."), tuple(values.shape[1:])


class ProcessTaskRunner:
    """``TaskRunner`` in which each idle process takes the next shard.

    Args:
        processes: yields the processes that map.
        task: the task of each process, without the work.
        whole: returns all rows as one shard.
        listener: called for tasks that may have lost events; None for no reports.
    """

    def __init__(
        self,
        processes: Processes,
        task: _Task,
        whole: Callable[[], Shard],
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.parts = task.parts
        self._processes, self._task, self._whole, self._listener = processes, task, whole, listener

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Map all shards in processes."""
        (Path(self._task.folder) / "state").write_bytes(pack_state(state))
        task = replace(self._task, work=ship(work), reporting=replace(self._task.reporting, number=number))
        found, lost = self._mapped(task.map, range(len(self.parts)))
        for part, reason in lost.items():
            raise WorkerLost(
                f"part {part} in round {number} was lost {_TRIES} times: {reason}", place=ErrorContext("map")
            )
        emit(found, self._listener)
        raise_on_failure(found, number)
        tree = TreeReducer(work.reduce)
        for each in found:
            tree.push(each.tensors)
        return tree.result(), [each.note for each in found]

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run all tasks in processes."""
        task, store = replace(self._task, work=ship(work)), ShardStore(Path(self._task.folder) / "parts")
        if all_rows and not store.has(len(self.parts)):
            store.write(len(self.parts), pack(self._whole()))
        found, lost = self._mapped(task.map_whole if all_rows else task.map_part, indices)
        for index, reason in lost.items():
            raise WorkerLost(f"task {index} was lost {_TRIES} times: {reason}", place=ErrorContext("map", index))
        emit(found, self._listener)
        yield from found

    def _mapped(self, call: Callable[[int], bytes], indices: Sequence[int]) -> tuple[list[TaskResult], dict[int, str]]:
        """Results of the calls, or, once a call was lost too often, why; then no further call starts."""
        left, tries, found = [*indices], dict.fromkeys(indices, 0), dict[int, TaskResult]()
        while left:
            # The next request for processes replaces those that ended.
            with self._processes() as processes:
                done, lost = _work_off(processes, call, left)
            found |= done
            for index in lost:
                tries[index] += 1
            given_up = {index: reason for index, reason in lost.items() if tries[index] == _TRIES}
            if given_up:
                return [], given_up
            left = [index for index in left if index not in found]
        return [found[index] for index in indices], {}


@dataclass(frozen=True)
class _Task:
    folder: str
    columns: Columns
    parts: tuple[int, ...]
    layout: dict[str, Layout]
    threads: int
    reporting: Reporting
    work: bytes = b""

    def map(self, index: int) -> bytes:
        """Map a shard; as bytes, since a multiprocessing connection would share the tensors' memory."""
        part = self._open(index)
        state = unpack_state((Path(self.folder) / "state").read_bytes())
        return mapped(self.work, state, part, reporting=self.reporting).packed()

    def map_part(self, index: int) -> bytes:
        return mapped(self.work, index, self._open(index), reporting=self.reporting).packed()

    def map_whole(self, index: int) -> bytes:
        whole = self._open(len(self.parts))
        part = replace(whole, index=0, count=1, parts=(whole.rows,))
        return mapped(self.work, index, part, index=index, reporting=self.reporting).packed()

    def _open(self, index: int) -> Shard:
        torch.set_num_threads(self.threads)  # a gang's worker sets its own
        return ShardStore(Path(self.folder) / "parts").open(index, self.columns, self.parts, self.layout)


def _work_off(
    processes: list[WorkerProcess], call: Callable[[int], bytes], indices: Sequence[int]
) -> tuple[dict[int, TaskResult], dict[int, str]]:
    left, busy = [*reversed(indices)], dict[WorkerProcess, int]()
    found: dict[int, TaskResult] = {}
    lost: dict[int, str] = {}
    idle = [*processes]
    while busy or (left and idle):
        while left and idle:
            process = idle.pop(0)
            busy[process] = left.pop()
            process.call(ship(partial(call, busy[process])))
        ready = wait([end for process in busy for end in (process.connection, process.sentinel)])
        for process in [each for each in busy if each.connection in ready or each.sentinel in ready]:
            index = busy.pop(process)
            try:
                found[index] = TaskResult.unpacked(process.receive())
            except (EOFError, ConnectionError):
                lost[index] = process.exit_reason()
                continue
            process.busy = False
            idle.append(process)
    return found, lost


def dealt(data: Any, columns: Columns | Sequence[str] | None, count: int) -> list[Shard]:
    """Spool the data in this process as ``count`` shards; a list of tables stays as it is, and no client is split."""
    tables, wanted = split_rows(data, columns, count)
    if wanted is None:
        raise InvalidInput("there are no data; expected rows to map.")
    if wanted.client is not None and not isinstance(data, Sequence):
        tables = by_client(tables, wanted.client.name)
    return _sealed([_spooled(table, wanted, index) for index, table in enumerate(tables)])


def _spooled(batches: Batches, columns: Columns, index: int) -> Spool:
    spool = Spool(columns, part=index)
    for batch in batches:
        spool.append(batch)
    spool.check()
    return spool


def _sealed(spools: Sequence[Spool]) -> list[Shard]:
    """The spools' shards with one layout; an empty shard takes the layout of the others."""
    layout = {name: found for spool in spools for name, found in spool.layout().items()}
    rows = tuple(spool.rows for spool in spools)
    if not sum(rows):
        raise InvalidInput("the data has no rows; expected at least one.", place=ErrorContext("feed"))
    return [spool.part(index, rows, layout) for index, spool in enumerate(spools)]
