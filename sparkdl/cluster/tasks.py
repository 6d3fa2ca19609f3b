"""What a cluster needs to map parts and reduce what comes of them, the same on every cluster.

    with cluster.map_reduce(data, columns, parts=8) as jobs:      # the data are dealt out and packed, once
        update, notes = jobs.run(work, state)                     # one round, again and again

``work.map(state, part)`` returns tensors by name, which are reduced, and a note, plain data that comes back as it is.
``work.reduce(one, other)`` takes two sets of tensors for one, elementwise. It is applied along a fixed tree over the
parts' indices, ((0 1) (2 3)) ((4 5) 6) for seven, whatever the order in which they come: any order gives the same bits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import cloudpickle
from torch import Tensor

from sparkdl.data.shard import Part
from sparkdl.errors import Cause, InvalidInput, Place, SparkdlError, cause_of, error_of
from sparkdl.io.pickling import unship
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.telemetry.event import Event, Listener
from sparkdl.telemetry.recorder import Told
from sparkdl.telemetry.task_recorder import Reporting

Tensors = dict[str, Tensor]


class RoundWork(Protocol):
    """What a round does; it travels to the executors."""

    def map(self, state: Any, part: Part) -> tuple[Tensors, Any]:
        """What a part gives: tensors to be reduced, and a note. It must depend on nothing but its arguments."""

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """Two for one, tensor by tensor and elementwise: it may be given a few of the names, and slices of them."""


class Jobs(Protocol):
    """Data that are dealt out and packed, and rounds over them.

    Attributes:
        parts: rows of every part, by index.
    """

    parts: tuple[int, ...]

    def run(self, work: RoundWork, state: Any, *, number: int = 0) -> tuple[Tensors, list[Any]]:
        """One round.

        Args:
            work: what it does.
            state: plain data, as ``sparkdl.io.serialization`` packs it; it goes once to every executor.
            number: of the round, for messages.

        Returns:
            The reduced tensors, and the notes in the parts' order.

        Raises:
            InvalidInput: the work refused its input; the message names the part.
            MemberFailed: the work raised.
            MemberLost: a part was lost more often than the cluster tries.
        """

    def each(self, work: RoundWork, indices: Sequence[int], *, whole: bool) -> Iterator[Mapped]:
        """A task for each index, whose results are not reduced.

        One that fails does not keep the others from running.

        Args:
            work: ``work.map(index, part)`` is called in each task; ``work.reduce`` is not.
            indices: any numbers; with ``whole=False`` of parts.
            whole: every task has all rows, in the order of their ids, as part 0 of 1; else those of its part.

        Returns:
            What came of each, in the order of the indices; ``Mapped.index`` is the index, and its ``trouble`` what went
            wrong. All tasks have ended before the first comes.

        Raises:
            MemberLost: tasks were lost more often than the cluster tries.
        """


@dataclass
class Tree:
    """Reduces what comes in the parts' order, and holds one for each level of the tree at most.

    Attributes:
        reduce: two for one.
    """

    reduce: Callable[[Tensors, Tensors], Tensors]
    _stack: list[tuple[int, Tensors]] = field(default_factory=list)

    def push(self, tensors: Tensors) -> None:
        """Take the next part's."""
        height = 0
        while self._stack and self._stack[-1][0] == height:
            tensors = self.reduce(self._stack.pop()[1], tensors)
            height += 1
        self._stack.append((height, tensors))

    def result(self) -> Tensors:
        """What all parts come to.

        Raises:
            InvalidInput: there was none.
        """
        if not self._stack:
            raise InvalidInput("there are no parts to reduce.")
        _, total = self._stack.pop()
        while self._stack:
            total = self.reduce(self._stack.pop()[1], total)
        return total


@dataclass(frozen=True)
class Mapped:
    """What came of one part: tensors and a note, or what went wrong.

    Attributes:
        index: the part's.
        tensors: what is reduced.
        note: what is not.
        trouble: kind, message and traceback of an error; None where there is none.
        host: where it happened.
        told: what became of the task's events.
    """

    index: int
    tensors: Tensors = field(default_factory=dict)
    note: Any = None
    trouble: Cause | None = None
    host: str = ""
    told: Told = field(default_factory=Told)

    def packed(self) -> bytes:
        """As bytes: tensors as ``sparkdl.io.serialization`` packs them, since pickle takes a millisecond for each."""
        packed: bytes = cloudpickle.dumps(
            (self.index, pack_state(self.tensors), self.note, self.trouble, self.host, self.told)
        )
        return packed

    @classmethod
    def of_error(cls, index: int, error: Exception) -> Mapped:
        """What went wrong with a part."""
        return cls(index, trouble=cause_of(error), host=socket.gethostname())

    def error(self, what: str, *, step: int | None = None) -> SparkdlError:
        """What went wrong, as an error.

        Args:
            what: was mapped, for its message.
            step: number of the round, if there is one.
        """
        assert self.trouble is not None
        return error_of(self.trouble, Place("map", self.index, self.host, step=step), before=f"{what}: ")

    @classmethod
    def unpacked(cls, packed: bytes) -> Mapped:
        """What was ``packed`` in a process of this cluster."""
        index, tensors, *rest = cloudpickle.loads(packed)
        return cls(index, unpack_state(tensors), *rest)


def mapped(
    work: bytes,
    state: Any,
    part: Part,
    *,
    index: int | None = None,
    reporting: Reporting | None = None,
    attempt: int = 0,
) -> Mapped:
    """Map a part. An error is returned: the cluster would try it again, and it would be raised again.

    Args:
        work: the pickled ``RoundWork``.
        state: what it is given beside the part.
        part: the rows.
        index: what the result is known by; None for the part's own index.
        reporting: where it tells of itself; None for nowhere.
        attempt: how often it was tried before.

    Raises:
        OSError: a disk or a network failed, and may not the next time.
    """
    index = part.index if index is None else index
    told = Told()
    try:
        does = unship(work)
        with (reporting or Reporting()).task(type(does).__name__.lower(), index, attempt) as told:
            tensors, note = does.map(state, part)
        return Mapped(index, tensors, note, host=socket.gethostname(), told=told)
    except OSError:
        raise
    except Exception as error:
        return replace(Mapped.of_error(index, error), told=told)


def tell(found: Iterable[Mapped], listener: Callable[[Event], None] | None) -> None:
    """Tell a listener which tasks may have lost events; of the others it has heard everything."""
    hear = None if listener is None else Listener(listener)
    for each in found:
        if hear is not None and (each.told.dropped or each.told.kept or each.told.broken):
            hear(Event("outcome", each.index, 0, time.time(), None, dict(vars(each.told)), each.host))


def settle(found: Sequence[Mapped], number: int) -> None:
    """Raise what went wrong in a round, at the first of the parts where something did.

    Raises:
        SparkdlError: something did.
    """
    failed = [each for each in found if each.trouble is not None]
    if not failed:
        return
    first = min(failed, key=lambda each: each.index)
    raise first.error(f"part {first.index} in round {number}", step=number)
