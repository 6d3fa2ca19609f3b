"""Rounds on this machine: in this process, or in processes that take one part after the other."""

from __future__ import annotations

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

from sparkdl.errors import InvalidInput, MemberLost, Place
from sparkdl.feed.blocks import Store, pack
from sparkdl.feed.column_file import Layout
from sparkdl.feed.columns import Columns
from sparkdl.feed.part import Part, numbers
from sparkdl.feed.spool import Spool
from sparkdl.feed.tables import Batches, by_client, deal
from sparkdl.map_reduce import Mapped, RoundWork, Tensors, Tree, mapped, settle
from sparkdl.process import MemberProcess
from sparkdl.shipping import ship
from sparkdl.state import pack_state, unpack_state
from sparkdl.tensors import Input

_TRIES = 4  # as Spark's spark.task.maxFailures

Processes = Callable[[], AbstractContextManager[list[MemberProcess]]]
"""Gives a round its processes, all of them alive."""


class InlineJobs:
    """See ``Jobs``: every part is mapped in this process."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = tuple(part.rows for part in parts)
        self._parts = parts

    def run(self, work: RoundWork, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """See ``Jobs``."""
        shipped, packed, tree = ship(work), pack_state(state), Tree(work.reduce)
        notes = []
        for part in self._parts:
            found: Mapped = mapped(shipped, unpack_state(packed), part)
            settle([found], number)
            tree.push(found.tensors)
            notes.append(found.note)
        return tree.result(), notes


@contextmanager
def inline_jobs(data: Any, columns: Columns | Sequence[str] | None, parts: int) -> Iterator[InlineJobs]:
    """See ``Cluster.map_reduce``."""
    yield InlineJobs(dealt(data, columns, parts))


@contextmanager
def process_jobs(
    processes: Processes, data: Any, columns: Columns | Sequence[str] | None, parts: int, *, threads: int
) -> Iterator[ProcessJobs]:
    """See ``Cluster.map_reduce``."""
    found = dealt(data, columns, parts)
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        store = Store(Path(folder) / "parts")
        for part in found:
            store.write(part.index, pack(part))
        # Parts without rows were sealed with the layout of the others, so that any of them tells it.
        layout = {name: _layout(tensor) for name, tensor in found[0].tensors.items()}
        rows = tuple(part.rows for part in found)
        yield ProcessJobs(processes, _Task(folder, found[0].columns, rows, layout, threads))


def _layout(rows: Input) -> Layout:
    values = rows if isinstance(rows, Tensor) else rows.values
    return str(values.dtype).removeprefix("torch."), tuple(values.shape[1:])


class ProcessJobs:
    """See ``Jobs``: processes take the parts in turn, each the next one when it is done."""

    def __init__(self, processes: Processes, task: _Task) -> None:
        self.parts = task.parts
        self._processes, self._task = processes, task

    def run(self, work: RoundWork, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """See ``Jobs``."""
        (Path(self._task.folder) / "state").write_bytes(pack_state(state))
        task = replace(self._task, work=ship(work))
        left, tries, found = [*range(len(self.parts))], dict.fromkeys(range(len(self.parts)), 0), dict[int, Mapped]()
        while left:
            # A process that has gone is replaced when the next ones are asked for.
            with self._processes() as processes:
                done, lost = _work_off(processes, task, left)
            found |= done
            for part, obituary in lost.items():
                tries[part] += 1
                if tries[part] == _TRIES:
                    raise MemberLost(
                        f"part {part} in round {number} was lost {_TRIES} times: {obituary}", place=Place("map")
                    )
            left = [part for part in left if part not in found]
        ordered = [found[part] for part in sorted(found)]
        settle(ordered, number)
        tree = Tree(work.reduce)
        for each in ordered:
            tree.push(each.tensors)
        return tree.result(), [each.note for each in ordered]


@dataclass(frozen=True)
class _Task:
    folder: str
    columns: Columns
    parts: tuple[int, ...]
    layout: dict[str, Layout]
    threads: int
    work: bytes = b""

    def map(self, index: int) -> bytes:
        """Map a part, in a process; as bytes, since a connection of multiprocessing would share tensors' memory."""
        torch.set_num_threads(self.threads)  # a gang's member sets its own
        part = Store(Path(self.folder) / "parts").open(index, self.columns, self.parts, self.layout)
        return mapped(self.work, unpack_state((Path(self.folder) / "state").read_bytes()), part).packed()


def _work_off(
    processes: list[MemberProcess], task: _Task, parts: Sequence[int]
) -> tuple[dict[int, Mapped], dict[int, str]]:
    """What came of the parts; and those whose process ended, with what is known of that."""
    left, busy = [*reversed(parts)], dict[MemberProcess, int]()
    found: dict[int, Mapped] = {}
    lost: dict[int, str] = {}
    idle = [*processes]
    while busy or (left and idle):
        while left and idle:
            process = idle.pop(0)
            busy[process] = left.pop()
            process.call(ship(partial(task.map, busy[process])))
        ready = wait([end for process in busy for end in (process.connection, process.sentinel)])
        for process in [each for each in busy if each.connection in ready or each.sentinel in ready]:
            part = busy.pop(process)
            try:
                found[part] = Mapped.unpacked(process.receive())
            except (EOFError, ConnectionError):
                lost[part] = process.obituary()
                continue
            process.busy = False
            idle.append(process)
    return found, lost


def dealt(data: Any, columns: Columns | Sequence[str] | None, count: int) -> list[Part]:
    """The data in so many parts, spooled in this process; a list of tables as it is, else clients as a whole."""
    tables, wanted = deal(data, columns, count)
    if wanted is None:
        raise InvalidInput("there are no data; expected rows to map.")
    if wanted.client is not None and not isinstance(data, Sequence):
        tables = by_client(tables, wanted.client.name)
    return _sealed([_spooled(table, wanted, index) for index, table in enumerate(tables)], wanted)


def _spooled(batches: Batches, columns: Columns, index: int) -> Spool:
    spool = Spool(columns, part=index)
    for batch in batches:
        spool.append(batch)
    spool.check()
    return spool


def _sealed(spools: Sequence[Spool], columns: Columns) -> list[Part]:
    """The spools' parts, of one layout; an empty one takes that of the others."""
    layout = {name: found for spool in spools for name, found in spool.layout().items()}
    rows = tuple(spool.rows for spool in spools)
    if not sum(rows):
        raise InvalidInput("the data has no rows; expected at least one.", place=Place("feed"))
    found = []
    for index, spool in enumerate(spools):
        tensors = spool.seal(layout)
        order = None if columns.row_id is None else spool.order(numbers(tensors, columns.row_id.name))
        found.append(Part(index, len(spools), rows[index], rows, columns, tensors, order))
    return found
