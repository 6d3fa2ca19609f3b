"""What runs on one member of a gang, the same on every cluster.

    meet (in a thread) + spool the part -> join -> agree on the parts -> work(world, part) -> outcome

A member never lets an error escape: it returns it. So the launcher gets every member's own account, can tell the
first cause from its consequences, and no error is buried under a cluster's own report of it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from sparkdl.cluster.failure import Failure, Outcome
from sparkdl.cluster.group.rendezvous import Exchange, Invitation, Meeting, join, meet
from sparkdl.cluster.group.world import World
from sparkdl.cluster.heartbeat import beating
from sparkdl.data.columns import Columns
from sparkdl.data.shard import Part
from sparkdl.data.spool import Spool
from sparkdl.data.tables import Batches
from sparkdl.errors import InvalidInput, PeerLost, Place
from sparkdl.io.pickling import unship
from sparkdl.io.threads import in_background, torch_threads
from sparkdl.telemetry.emit import record, recording, span
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import forwarding
from sparkdl.telemetry.protocol import Endpoint
from sparkdl.telemetry.recorder import Recorder

_FIRST_SIGN = 3.0
"""Seconds at most until the driver has had the first sign of life: who was never heard is never missed."""

Work = Callable[[World, Part | None], Any]
"""What a gang runs on every member; its values come back as a list in rank order.

Where it has a method ``title()``, the Spark UI shows what that returns beside the attempt.
"""


@dataclass(frozen=True)
class Task:
    """What every member of a gang is told.

    Attributes:
        work: the pickled ``work(world, part)``.
        size: members of the gang.
        run: an id that no other gang has.
        attempt: which attempt of the run this is.
        columns: what to keep of the data; None where there is none.
        timeout: seconds after which a collective is given up, or a member that has not come to the rendezvous.
        device: ``"cpu"`` or ``"cuda"``.
        threads: torch's threads; None leaves them as they are.
        endpoint: where events go; None for nowhere.
        fallback: the folder for events that cannot be sent; None to drop them.
        heartbeat: seconds between two signs of life; None for none.
        level: of log records that go to the driver as events; None for none.
    """

    work: bytes
    size: int
    run: str
    attempt: int = 0
    columns: Columns | None = None
    timeout: float = 600.0
    device: str = "cpu"
    threads: int | None = None
    endpoint: Endpoint | None = None
    fallback: str | None = field(default=None, repr=False)
    heartbeat: float | None = None
    level: int | None = None


def run_member(
    task: Task,
    meeting: Meeting,
    exchange: Exchange,
    batches: Batches,
    *,
    directory: str | None = None,
    listener: Callable[[Event], None] | None = None,
) -> Outcome:
    """Take part in a gang.

    Args:
        task: what every member is told.
        meeting: this member's place in the gang.
        exchange: gives every member's line to every member.
        batches: this member's partition; drained to its end whatever happens.
        directory: the folder for the spool.
        listener: called with events directly, where the driver is this process.
    """
    member = _Member(task, meeting, exchange, directory)
    recorder = Recorder(
        task.endpoint, rank=meeting.rank, attempt=meeting.attempt, fallback=task.fallback, listener=listener
    )
    level = None if listener is not None else task.level  # in the driver's own process nothing needs to be sent
    with recording(recorder), forwarding(level), torch_threads(task.threads), _quick_collection():
        try:
            outcome = _outcome(task, member, recorder, batches)
        finally:
            member.let_go()
            recorder.close()
            _give_back_memory()
    return replace(outcome, told=recorder.told)


def _outcome(task: Task, member: _Member, recorder: Recorder, batches: Batches) -> Outcome:
    try:
        record("started", pid=os.getpid(), host=member.place.host)
        with beating(member.beat, task.heartbeat):
            if task.heartbeat is not None:
                recorder.settle(_FIRST_SIGN)
            value = member.take_part(batches)
        record("finished")
        return Outcome(member.meeting.rank, value, seconds=member.seconds)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        failure = Failure.of(error, member.place)
        record("failed", **failure.to_json())
        return Outcome(member.meeting.rank, failure=failure, seconds=member.seconds)


class _Member:
    def __init__(self, task: Task, meeting: Meeting, exchange: Exchange, directory: str | None) -> None:
        self.task = task
        self.meeting = meeting
        self.exchange = exchange
        self.directory = directory
        self.seconds: dict[str, float] = {}
        self.stage = "launch"
        self.world: World | None = None

    @property
    def place(self) -> Place:
        """Where this member is now."""
        working = self.world is not None and self.stage == "work"
        step = self.world.clock.step if self.world is not None and working else None
        return Place(self.stage, self.meeting.rank, socket.gethostname(), self.meeting.attempt, step)

    def beat(self) -> None:
        """Give a sign of life."""
        world = self.world
        working = world is not None and self.stage == "work"
        phase = world.phase if world is not None and working else self.stage
        record("heartbeat", clock=world.clock if world is not None else None, host=self.place.host, phase=phase)

    def let_go(self) -> None:
        """Drop the process group, after everything else that refers to it.

        The last reference closes its sockets and waits for its threads. Were it that of somebody's
        DistributedDataParallel, whose destructor holds on to Python's lock, and a thread about to free a Python object,
        both would wait for ever. This reference lets go of the lock.
        """
        if self.world is not None:
            self.world.process_group = None

    def take_part(self, batches: Batches) -> bytes:
        meeting = in_background(lambda: meet(self.meeting, self.exchange), "sparkdl-meet")
        spool, spoiled = None, None
        with self._stage("feed"):
            try:
                spool = self._spool(batches)
            except Exception as error:  # the others wait for this member: it has to tell them first
                spoiled = error
        if spoiled is not None:
            self._warn(meeting)
            self.stage = "feed"  # where it happened; only the news of it had to wait
            raise spoiled
        with self._stage("join"):
            invitation: Invitation = meeting.result()
        with join(self.meeting, invitation) as world:
            self.world = world
            part = self._agree(world, spool)
            with self._stage("work"):
                value = unship(self.task.work)(world, part)
            with self._stage("result"):
                packed: bytes = cloudpickle.dumps(value)
                return packed

    def _spool(self, batches: Batches) -> Spool | None:
        columns, remaining = self.task.columns, iter(batches)
        try:
            if columns is None:
                return None
            spool = Spool(columns, directory=self.directory, part=self.meeting.rank)
            for batch in remaining:
                spool.append(batch)
            spool.check()
            return spool
        finally:
            for _ in remaining:  # a task that leaves input behind loses its Python worker
                continue

    def _warn(self, meeting: Future[Invitation]) -> None:
        """Tell the others that there will be no part of this member; those who have gone need not be told."""
        with suppress(PeerLost), self._stage("join"), join(self.meeting, meeting.result()) as world:
            self.world = world
            world.agree("parts", {"failed": True})

    def _agree(self, world: World, spool: Spool | None) -> Part | None:
        with self._stage("join"):
            own: dict[str, Any] = {"failed": False}
            if spool is not None:
                own |= {"rows": spool.rows, "layout": spool.layout()}
            answers = world.agree("parts", own)
            for rank, answer in enumerate(answers):
                if answer["failed"]:
                    raise PeerLost(f"rank {rank} failed while it read its part.")
        if spool is None or self.task.columns is None:
            return None
        with self._stage("feed"):
            return _seal(spool, world, answers)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        before, start = self.stage, time.perf_counter()
        self.stage = name
        try:
            with span(name):
                yield
            self.stage = before  # only where all went well: a failure is reported with the stage it happened in
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _seal(spool: Spool, world: World, answers: list[dict[str, Any]]) -> Part:
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    owner: dict[str, int] = {}
    for rank, answer in enumerate(answers):
        for name, (dtype, shape) in answer["layout"].items():
            found = dtype, tuple(shape)
            if layout.setdefault(name, found) != found:
                raise InvalidInput(
                    f"column {name!r} has rows of {layout[name]} in part {owner[name]} and of {found} in part {rank}."
                )
            owner.setdefault(name, rank)
    rows = tuple(answer["rows"] for answer in answers)
    if not sum(rows):
        raise InvalidInput("the data has no rows; expected at least one.")
    return spool.part(world.rank, rows, layout)


@contextmanager
def _quick_collection() -> Iterator[None]:
    """Spares the garbage collector what was there before: torch alone is half a million objects to search."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _give_back_memory() -> None:
    """Return freed memory to the system: a Python worker outlives the gang, and glibc would keep 100 MB of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
