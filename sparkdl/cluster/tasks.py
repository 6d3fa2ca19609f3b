"""Map and reduce over the shards of data, the same on every cluster.

    with cluster.map_reduce(data, columns, num_shards=8) as jobs:  # divides and packs the data, once
        update, notes = jobs.run(work, state)                      # one round, again and again

``work.map(state, shard)`` returns tensors by name, which are reduced, and a note of plain data, which is not.
``work.reduce(left, right)`` combines two sets of tensors elementwise, along a fixed tree over the shards' indices:
((0 1) (2 3)) ((4 5) 6) for seven. Results are therefore bit-identical for any order of arrival.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import cloudpickle
import torch
from torch import Tensor

from sparkdl.cluster.group.devices import computing_on, free_memory
from sparkdl.data.shard import Shard
from sparkdl.errors import Cause, ErrorContext, InvalidInput, SparkdlError, cause_of, error_of
from sparkdl.io.pickling import unship
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.telemetry.event import Event, SafeCallback
from sparkdl.telemetry.recorder import EventCounts
from sparkdl.telemetry.task_recorder import Reporting

Tensors = dict[str, Tensor]


class MapReduce(Protocol):
    """The work of a round; pickled for the executors.

    A dataclass with a field ``device``, a ``torch.device``, gets the task's device in it. Other works compute where
    they choose. Tensors that ``map`` returns are on the CPU.
    """

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Map a shard to tensors, which are reduced, and a note; must depend on its arguments only."""

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        """Combine two sets of tensors elementwise; may get a subset of the names, and slices of the tensors."""


class TaskRunner(Protocol):
    """Packed shards, and rounds over them.

    Attributes:
        shard_rows: rows of every shard, by index.
    """

    shard_rows: tuple[int, ...]

    def run(self, work: MapReduce, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """Run one round.

        Args:
            work: maps and reduces.
            state: plain data, as ``sparkdl.io.serialization`` packs it; every executor gets it once.
            number: the round's number, for messages.

        Returns:
            The reduced tensors, and the notes in the shards' order.

        Raises:
            InvalidInput: the work rejected its input; the message names the shard.
            WorkerFailed: the work raised.
            WorkerLost: a shard was lost more often than the cluster retries.
        """

    def each(self, work: MapReduce, indices: Sequence[int], *, all_rows: bool) -> Iterator[TaskResult]:
        """Run a task for each index, without reducing the results; a failed task does not stop the others.

        Args:
            work: each task calls ``work.map(index, shard)``; ``work.reduce`` is unused.
            indices: any numbers; with ``all_rows=False`` shard indices.
            all_rows: if True, every task gets all rows, in the order of their ids, as shard 0 of 1; else its own shard.

        Returns:
            The results in the order of the indices; ``TaskResult.index`` is the index, ``TaskResult.trouble`` the
            error. All tasks have ended before the first result is yielded.

        Raises:
            WorkerLost: tasks were lost more often than the cluster retries.
        """


@dataclass
class TreeReducer:
    """Reduces results in the shards' order by ``reduce``, and holds at most one per level of the tree."""

    reduce: Callable[[Tensors, Tensors], Tensors]
    _stack: list[tuple[int, Tensors]] = field(default_factory=list)

    def push(self, tensors: Tensors) -> None:
        """Add the next shard's tensors."""
        height = 0
        while self._stack and self._stack[-1][0] == height:
            tensors = self.reduce(self._stack.pop()[1], tensors)
            height += 1
        self._stack.append((height, tensors))

    def result(self) -> Tensors:
        """The reduced tensors of all shards; raises InvalidInput without any."""
        if not self._stack:
            raise InvalidInput("there are no shards to reduce.")
        _, total = self._stack.pop()
        while self._stack:
            total = self.reduce(self._stack.pop()[1], total)
        return total


@dataclass(frozen=True)
class TaskResult:
    """The result of one task: tensors and a note, or an error.

    Attributes:
        index: the shard's index, or the task's.
        tensors: to be reduced.
        note: plain data, not reduced.
        trouble: kind, message and traceback of an error; None on success.
        host: the host of the task.
        counts: delivery counts of the task's events, which the driver compares with the events it received.
    """

    index: int
    tensors: Tensors = field(default_factory=dict)
    note: Any = None
    trouble: Cause | None = None
    host: str = ""
    counts: EventCounts = field(default_factory=EventCounts)

    @classmethod
    def of_error(cls, index: int, error: Exception) -> TaskResult:
        """The result of a failed task."""
        return cls(index, trouble=cause_of(error), host=socket.gethostname())

    @classmethod
    def unpacked(cls, packed: bytes) -> TaskResult:
        """Restore a result that a process of this cluster ``packed``."""
        values = cloudpickle.loads(packed)
        return cls(**{**values, "tensors": unpack_state(values["tensors"])})

    def packed(self) -> bytes:
        """Serialize the result; pickling the tensors would take a millisecond each."""
        packed: bytes = cloudpickle.dumps({**vars(self), "tensors": pack_state(self.tensors)})
        return packed

    def error(self, what: str, *, step: int | None = None) -> SparkdlError:
        """The exception to raise for a failed task called ``what``; ``step`` is the round, None outside rounds."""
        assert self.trouble is not None
        return error_of(self.trouble, ErrorContext("map", self.index, self.host, step=step), before=f"{what}: ")


def mapped(
    work: bytes,
    state: Any,
    shard: Shard,
    *,
    index: int | None = None,
    reporting: Reporting | None = None,
    attempt: int = 0,
    choose_device: Callable[[], torch.device] | None = None,
) -> TaskResult:
    """Map a shard; exceptions of the work are returned, since the cluster would retry them in vain.

    Args:
        work: the pickled ``MapReduce``.
        state: the first argument of ``work.map``.
        shard: the rows.
        index: the result's index; None for the shard's.
        reporting: where the task reports its events; None for nowhere.
        attempt: number of earlier tries.
        choose_device: chooses the task's device, and raises InvalidInput without one; None for the CPU.

    Raises:
        OSError: a disk or a network failed; a retry may succeed.
    """
    index = shard.index if index is None else index
    counts, device = EventCounts(), torch.device("cpu")
    try:
        device = device if choose_device is None else choose_device()
        task = unship(work)
        if "device" in getattr(task, "__dataclass_fields__", ()):
            task = replace(task, device=device)
        reports = (reporting or Reporting()).task(type(task).__name__.lower(), index, attempt)
        with reports as counts, computing_on(device):
            tensors, note = task.map(state, shard)
        return TaskResult(index, tensors, note, host=socket.gethostname(), counts=counts)
    except OSError:
        raise
    except Exception as error:
        return replace(TaskResult.of_error(index, error), counts=counts)
    finally:
        free_memory(device)


def emit(results: Iterable[TaskResult], listener: Callable[[Event], None] | None) -> None:
    """Report the tasks that may have lost events to a listener."""
    callback = SafeCallback(listener or (lambda event: None))
    for result in results:
        counts = result.counts
        if counts.dropped or counts.kept or counts.broken:
            callback(Event("outcome", result.index, 0, time.time(), None, dict(vars(counts)), result.host))


def reduce_results(work: MapReduce, results: Iterable[TaskResult]) -> Tensors:
    """Reduce the results of all shards, in their order, by ``work.reduce``."""
    tree = TreeReducer(work.reduce)
    for result in results:
        tree.push(result.tensors)
    return tree.result()


def raise_on_failure(results: Iterable[TaskResult], number: int) -> None:
    """Raise the error of the first failed shard of a round, if any."""
    failures = [result for result in results if result.trouble is not None]
    if failures:
        first = min(failures, key=lambda result: result.index)
        raise first.error(f"shard {first.index} in round {number}", step=number)
