"""The main program of one worker of a gang, the same on every cluster.

    meet (in a thread) + spool the shard -> join -> agree on the shards -> work(world, shard) -> outcome

A worker returns its errors instead of raising them. So the launcher gets all workers' errors and finds the first cause.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_bytes
from typing import Any

import cloudpickle

from sparkdl.cluster.failure import Failure, WorkerResult
from sparkdl.cluster.group.rendezvous import AllGather, RendezvousSpec, join, meet
from sparkdl.cluster.group.world import World
from sparkdl.cluster.heartbeat import beating
from sparkdl.data.column_file import common_layout
from sparkdl.data.columns import Columns
from sparkdl.data.shard import Shard
from sparkdl.data.spool import Spool
from sparkdl.data.tables import Batches
from sparkdl.errors import ErrorContext, InvalidInput, PeerLost
from sparkdl.io.pickling import unship
from sparkdl.io.threads import in_background, torch_threads
from sparkdl.net.protocol import Endpoint
from sparkdl.telemetry.emit import record, recording, span
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import forwarding
from sparkdl.telemetry.recorder import Recorder

_FIRST_HEARTBEAT = 3.0
"""Maximum seconds to wait for the delivery of the first heartbeat: a worker without one is never missed."""

Work = Callable[[World, Shard | None], Any]
"""The function that a gang runs on every worker; the launcher returns its values in rank order.

The Spark UI shows the result of its method ``title()``, if it has one, beside the attempt.
"""


@dataclass(frozen=True)
class WorkerTask:
    """The task of every worker of a gang.

    Attributes:
        work: the pickled ``work(world, shard)``.
        run: an id that is unique to the gang.
        columns: which columns to keep; None without data.
        timeout: seconds until a collective, or the rendezvous, fails.
        device: ``"cpu"`` or ``"cuda"``.
        backend: ``"nccl"``, ``"gloo"`` or ``"auto"``.
        gpus: addresses of the GPUs that the cluster assigned to this worker; None if it assigns none.
        threads: torch's threads; None leaves them unchanged.
        endpoint: where events go; None for nowhere.
        fallback: the folder for events that cannot be sent; None to drop them.
        heartbeat: seconds between two heartbeats; None for none.
        level: lowest level of log records to send as events; None for none.
        secret: a key of this attempt, for connections between its workers.
    """

    work: bytes
    size: int
    run: str
    attempt: int = 0
    columns: Columns | None = None
    timeout: float = 600.0
    device: str = "cpu"
    backend: str = "auto"
    gpus: tuple[str, ...] | None = None
    threads: int | None = None
    endpoint: Endpoint | None = None
    fallback: str | None = field(default=None, repr=False)
    heartbeat: float | None = None
    level: int | None = None
    secret: bytes = field(default_factory=partial(token_bytes, 32), repr=False)


def run_worker(
    task: WorkerTask,
    rank: int,
    address: str,
    all_gather: AllGather,
    batches: Batches,
    *,
    directory: str | None = None,
    listener: Callable[[Event], None] | None = None,
    began: float | None = None,
) -> WorkerResult:
    """Run one worker of a gang, and return its value or its failure; errors of the work are not raised.

    Args:
        task: shared by all workers.
        rank: this worker's rank.
        address: an address of this host that the other workers can dial.
        all_gather: gives every worker's line to every worker.
        batches: this worker's partition; always read to its end, also on errors.
        directory: the folder for the spool.
        listener: receives events directly if the driver is this process.
        began: when the process began to import this worker's modules, in unix seconds; default: long ago.
    """
    about = (task.timeout, task.device, task.backend, task.gpus, task.secret)
    spec = RendezvousSpec(rank, task.size, task.run, task.attempt, address, *about)
    worker = _Worker(task, spec, all_gather, directory)
    recorder = Recorder(task.endpoint, rank=rank, attempt=task.attempt, fallback=task.fallback, listener=listener)
    level = None if listener is not None else task.level  # log records of the driver's own process need no sending
    with recording(recorder), forwarding(level), torch_threads(task.threads):
        if began is not None:
            record("span", name="imports", start=began, seconds=time.time() - began)
        try:
            result = worker.run(recorder, batches)
        finally:
            if worker.world is not None:
                # A group's destructor joins threads. The world's references release the GIL meanwhile; a user's
                # DistributedDataParallel would hold it, and could deadlock.
                worker.world.release()
            recorder.close()
            # A Python worker outlives the gang, and glibc would keep 100 MB of freed memory.
            if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
                trim(0)
    return replace(result, counts=recorder.counts)


class _Worker:
    def __init__(self, task: WorkerTask, spec: RendezvousSpec, all_gather: AllGather, directory: str | None) -> None:
        self.task, self.spec, self.all_gather, self.directory = task, spec, all_gather, directory
        self.seconds: dict[str, float] = {}
        self.stage = "launch"
        self.world: World | None = None

    def run(self, recorder: Recorder, batches: Batches) -> WorkerResult:
        try:
            record("started", pid=os.getpid(), host=self.context.host)
            with beating(self.heartbeat, self.task.heartbeat):
                if self.task.heartbeat is not None:
                    recorder.flush(_FIRST_HEARTBEAT)
                value = self.take_part(batches)
            record("finished")
            return WorkerResult(self.spec.rank, value, seconds=self.seconds)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            failure = Failure.of(error, self.context)
            record("failed", **failure.to_json())
            return WorkerResult(self.spec.rank, failure=failure, seconds=self.seconds)

    @property
    def context(self) -> ErrorContext:
        step = self.world.clock.step if self.world is not None and self.stage == "work" else None
        return ErrorContext(self.stage, self.spec.rank, socket.gethostname(), self.spec.attempt, step)

    def heartbeat(self) -> None:
        world = self.world
        phase = world.phase if world is not None and self.stage == "work" else self.stage
        record("heartbeat", clock=world.clock if world is not None else None, host=self.context.host, phase=phase)

    def take_part(self, batches: Batches) -> bytes:
        meeting = in_background(lambda: meet(self.spec, self.all_gather), "sparkdl-meet")
        spool, spoiled = None, None
        with self._stage("feed"):
            try:
                spool = self._spool(batches)
            except Exception as error:  # the others wait for this worker, so it reports to them first
                spoiled = error
        if spoiled is not None:
            with suppress(PeerLost), self._stage("join"), join(self.spec, meeting.result()) as world:
                self.world = world
                world.all_gather_json("shards", {"failed": True})
            self.stage = "feed"  # the stage of the error, not of its report
            raise spoiled
        with self._stage("join"):
            rendezvous = meeting.result()
        with join(self.spec, rendezvous) as world:
            self.world = world
            shard = self._agree(world, spool)
            with self._stage("work"):
                value = unship(self.task.work)(world, shard)
            with self._stage("result"):
                packed: bytes = cloudpickle.dumps(value)
                return packed

    def _spool(self, batches: Batches) -> Spool | None:
        columns, remaining = self.task.columns, iter(batches)
        try:
            if columns is None:
                return None
            spool = Spool(columns, directory=self.directory, shard=self.spec.rank)
            for batch in remaining:
                spool.append(batch)
            spool.check()
            return spool
        finally:
            for _ in remaining:  # Spark ends the Python worker of a task that leaves input unread
                continue

    def _agree(self, world: World, spool: Spool | None) -> Shard | None:
        with self._stage("join"):
            answer: dict[str, Any] = {"failed": False}
            if spool is not None:
                answer |= {"rows": spool.rows, "layout": spool.layout()}
            answers = world.all_gather_json("shards", answer)
            for rank, answer in enumerate(answers):
                if answer["failed"]:
                    raise PeerLost(f"rank {rank} failed while it read its shard.")
        if spool is None or self.task.columns is None:
            return None
        with self._stage("feed"):
            layout = common_layout(enumerate(answer["layout"] for answer in answers))
            rows = tuple(answer["rows"] for answer in answers)
            if not sum(rows):
                raise InvalidInput("the data has no rows; expected at least one.")
            return spool.shard(world.rank, rows, layout)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        before, start = self.stage, time.perf_counter()
        self.stage = name
        try:
            with span(name):
                yield
            self.stage = before  # only on success: a failure keeps the stage it occurred in
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
