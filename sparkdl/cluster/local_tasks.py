"""Rounds on this machine: in this process, or in processes that take one shard after the other."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.devices import task_device
from sparkdl.cluster.tasks import (
    MapReduce,
    TaskResult,
    Tensors,
    TreeReducer,
    emit,
    mapped,
    raise_on_failure,
    reduce_results,
)
from sparkdl.cluster.worker_process import WorkerProcess, wait_for
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

Processes = Callable[[], AbstractContextManager[list[WorkerProcess]]]  # of a round, all of them alive


@dataclass(frozen=True)
class ShardedData:
    """Data that is divided into shards; attributes as the arguments of ``Cluster.map_reduce``."""

    data: Any
    columns: Columns | Sequence[str] | None
    num_shards: int

    def shards(self) -> list[Shard]:
        """Spool the data in this process; a list of tables stays as it is, and no client is split."""
        tables, columns = split_rows(self.data, self.columns, self.num_shards)
        if columns is None:
            raise InvalidInput("data is None; expected rows to map.")
        if columns.client is not None and not isinstance(self.data, Sequence):
            tables = by_client(tables, columns.client.name)
        return _spool(tables, columns)

    def as_one_shard(self) -> Shard:
        """All rows as one shard; without ids, in the order of the shards."""
        tables, columns = split_rows(self.data, self.columns, self.num_shards)
        assert columns is not None  # shards() has raised if there are no data
        return _spool([list(itertools.chain.from_iterable(tables))], columns)[0]


class InlineTaskRunner:
    """``TaskRunner`` that maps every shard of ``data`` in this process."""

    def __init__(self, data: ShardedData, reporting: Reporting | None = None) -> None:
        self._data, self._shards, self._reporting = data, data.shards(), reporting or Reporting()
        self.shard_rows = tuple(shard.rows for shard in self._shards)

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Map all shards in this process."""
        shipped, packed, tree, notes = ship(work), pack_state(state), TreeReducer(work.reduce), []
        reporting = replace(self._reporting, number=number)
        for shard in self._shards:
            result = mapped(shipped, unpack_state(packed), shard, reporting=reporting)
            raise_on_failure([result], number)
            tree.push(result.tensors)
            notes.append(result.note)
        return tree.result(), notes

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run all tasks in this process."""
        shipped, one_shard = ship(work), self._data.as_one_shard() if all_rows else None
        yield from [
            mapped(shipped, index, one_shard or self._shards[index], index=index, reporting=self._reporting)
            for index in indices
        ]


@contextmanager
def process_jobs(
    processes: Processes,
    data: ShardedData,
    *,
    threads: int,
    device: str,
    reporting: Reporting,
    listener: Callable[[Event], None] | None,
) -> Iterator[ProcessTaskRunner]:
    """Write shards to disk for rounds in processes, each with ``threads`` of torch's threads.

    If ``device`` is ``"cuda"``, the processes take turns among the GPUs by their ranks.
    """
    shards = data.shards()
    # Empty shards were sealed with the layout of the others, so any shard has it.
    values = {name: rows if isinstance(rows, Tensor) else rows.values for name, rows in shards[0].tensors.items()}
    layout = {name: (str(rows.dtype).removeprefix("torch."), tuple(rows.shape[1:])) for name, rows in values.items()}
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        rows = tuple(shard.rows for shard in shards)
        task = _Task(folder, shards[0].columns, rows, layout, threads, device, reporting)
        for shard in shards:
            task.store.write(shard.index, pack(shard))
        yield ProcessTaskRunner(processes, task, data, listener)


class ProcessTaskRunner:
    """``TaskRunner`` in which each idle process takes the next shard; use ``process_jobs``."""

    def __init__(
        self, processes: Processes, task: _Task, data: ShardedData, listener: Callable[[Event], None] | None
    ) -> None:
        self.shard_rows = task.shard_rows
        self._processes, self._task, self._data, self._listener = processes, task, data, listener

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Map all shards in processes."""
        (Path(self._task.folder) / "state").write_bytes(pack_state(state))
        task = replace(self._task, work=ship(work), reporting=replace(self._task.reporting, number=number))
        results = self._mapped(task.map, range(len(self.shard_rows)), f"shard {{}} in round {number}")
        raise_on_failure(results, number)
        return reduce_results(work, results), [result.note for result in results]

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run all tasks in processes."""
        task = replace(self._task, work=ship(work))
        if all_rows and not task.store.has(len(self.shard_rows)):
            task.store.write(len(self.shard_rows), pack(self._data.as_one_shard()))
        yield from self._mapped(partial(task.map_index, all_rows=all_rows), indices, "task {}")

    def _mapped(self, call: Callable[[int, int], bytes], indices: Sequence[int], name: str) -> list[TaskResult]:
        results, tries = dict[int, TaskResult](), Counter[int]()
        while remaining := [index for index in indices if index not in results]:
            with self._processes() as processes:  # without those that ended
                lost = _work_off(processes, call, remaining, results)
            tries.update(lost.keys())
            for index, reason in lost.items():
                if tries[index] == _TRIES:
                    message = f"{name.format(index)} was lost {_TRIES} times: {reason}"
                    raise WorkerLost(message, context=ErrorContext("map", index))
        ordered = [results[index] for index in indices]
        emit(ordered, self._listener)
        return ordered


@dataclass(frozen=True)
class _Task:
    folder: str
    columns: Columns
    shard_rows: tuple[int, ...]
    layout: dict[str, Layout]
    threads: int
    device: str
    reporting: Reporting
    work: bytes = b""

    @property
    def store(self) -> ShardStore:
        return ShardStore(Path(self.folder) / "shards")

    def map(self, index: int, rank: int) -> bytes:
        """Map a shard in the process of a rank.

        The result is bytes, since a multiprocessing connection would share the tensors' memory.
        """
        state = unpack_state((Path(self.folder) / "state").read_bytes())
        return self._result(state, self._open(index), index, rank)

    def map_index(self, index: int, rank: int, *, all_rows: bool) -> bytes:
        shard = self._open(len(self.shard_rows) if all_rows else index)
        shard = replace(shard, index=0, count=1, shard_rows=(shard.rows,)) if all_rows else shard
        return self._result(index, shard, index, rank)

    def _result(self, state: Any, shard: Shard, index: int, rank: int) -> bytes:
        choose = partial(task_device, self.device, turn=rank)
        result = mapped(self.work, state, shard, index=index, reporting=self.reporting, choose_device=choose)
        return result.packed()

    def _open(self, index: int) -> Shard:
        torch.set_num_threads(self.threads)  # a gang's worker sets its own
        return self.store.open(index, self.columns, self.shard_rows, self.layout)


def _work_off(
    processes: list[WorkerProcess],
    call: Callable[[int, int], bytes],
    indices: Sequence[int],
    results: dict[int, TaskResult],
) -> dict[int, str]:
    waiting, busy, idle = [*reversed(indices)], dict[WorkerProcess, int](), [*processes]
    lost: dict[int, str] = {}
    while busy or (waiting and idle):
        while waiting and idle:
            process = idle.pop(0)
            busy[process] = waiting.pop()
            process.start(ship(partial(call, busy[process], process.rank)))
        for process in wait_for([*busy]):
            index = busy.pop(process)
            try:
                results[index] = TaskResult.unpacked(process.receive())
            except (EOFError, ConnectionError):
                lost[index] = process.exit_reason()
                continue
            process.busy = False
            idle.append(process)
    return lost


def _spool(tables: Sequence[Batches], columns: Columns) -> list[Shard]:
    spools = [Spool(columns, shard=index) for index in range(len(tables))]
    for spool, batches in zip(spools, tables, strict=True):
        for batch in batches:
            spool.append(batch)
        spool.check()
    layout = {name: column for spool in spools for name, column in spool.layout().items()}
    rows = tuple(spool.rows for spool in spools)
    if not sum(rows):
        raise InvalidInput("the data has no rows; expected at least one.", context=ErrorContext("feed"))
    return [spool.shard(index, rows, layout) for index, spool in enumerate(spools)]
