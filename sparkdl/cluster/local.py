"""A gang of processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.failure import Failure, WorkerResult, raise_first_cause
from sparkdl.cluster.local_tasks import process_jobs
from sparkdl.cluster.protocol import Capacity, Listener, gang_size
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.cluster.worker import Work, WorkerTask
from sparkdl.cluster.worker_process import WorkerProcess
from sparkdl.data.columns import Columns
from sparkdl.data.tables import spill, split_rows
from sparkdl.errors import ErrorContext, InvalidInput, SparkdlError, WorkerLost
from sparkdl.io.pickling import ship
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.log_forwarding import level_of
from sparkdl.telemetry.task_recorder import Reporting

_GRACE = 10.0  # seconds for the other workers to report after one has failed


class LocalCluster:
    """Processes of this machine; the first gang starts them and later gangs reuse them.

    One gang runs at a time; gangs of other threads wait. A smaller gang uses the first processes.

    Args:
        size: workers of a gang.
        device: ``"cpu"`` (gloo), or ``"cuda"`` (NCCL; one GPU per worker).
        threads: torch's threads in each worker; None divides this machine's cores among the gang's workers.
        timeout: seconds until a collective, or the rendezvous, fails.
        logs: lowest level of the log records that listeners get, one of ``sparkdl.telemetry.log_forwarding.LEVELS``.

    Raises:
        InvalidInput: ``size`` is below 1, this machine has fewer GPUs, or ``logs`` is no level.
    """

    def __init__(
        self,
        size: int,
        *,
        device: str = "cpu",
        threads: int | None = None,
        timeout: float = 600.0,
        logs: str = "off",
    ) -> None:
        if size < 1:
            raise InvalidInput(f"a LocalCluster of {size} members was asked for; expected at least 1.")
        if device == "cuda" and torch.cuda.device_count() < size:
            raise InvalidInput(f"{size} GPUs are needed, one for each member; there are {torch.cuda.device_count()}.")
        self.size = size
        self._device = device
        self._threads = threads
        self._timeout = timeout
        self._level = level_of(logs)
        self._members: list[WorkerProcess] = []
        self._turn = threading.Lock()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers' processes; the next gang starts new ones."""
        for member in self._members:
            member.kill()
        self._members = []

    def capacity(self) -> Capacity:
        """Capacity for all workers on a CPU, else for as many as there are GPUs."""
        members = torch.cuda.device_count() if self._device == "cuda" else self.size
        return Capacity(members, members)

    def gang(
        self,
        work: Work,
        data: Any = None,
        columns: Columns | Sequence[str] | None = None,
        *,
        listener: Listener | None = None,
        attempt: int = 0,
        guard: CancellationToken | None = None,
        size: int | None = None,
    ) -> list[Any]:
        """Run a gang in processes, as ``Cluster.gang``."""
        members = gang_size(size, self.size)
        tables, wanted = split_rows(data, columns, members)
        with Channel(listener or _ignore) as channel, tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
            task = WorkerTask(
                ship(work),
                members,
                uuid.uuid4().hex,
                attempt,
                wanted,
                self._timeout,
                self._device,
                self._threads_of(members),
                channel.endpoint if listener else None,
                heartbeat=guard.heartbeat if guard else None,
                level=self._level,
            )
            files = [spill(table, os.path.join(folder, f"part-{rank}.arrow")) for rank, table in enumerate(tables)]
            with (
                self._turn,
                self._first(members) as chosen,
                (guard or CancellationToken()).stopping(partial(_end, chosen)),
            ):
                for member, file in zip(chosen, files, strict=True):
                    member.start(task, file)
                return raise_first_cause(_collect(chosen, attempt, self._timeout), listener, attempt=attempt)

    def map_reduce(
        self,
        data: Any,
        columns: Columns | Sequence[str] | None = None,
        *,
        parts: int | None = None,
        shuffle: bool = True,
        listener: Listener | None = None,
    ) -> AbstractContextManager[TaskRunner]:
        """Map shards in processes, each taking the next shard when idle, as ``Cluster.map_reduce``."""
        return self._jobs(data, columns, parts or self.size, listener)

    @contextmanager
    def _jobs(
        self, data: Any, columns: Columns | Sequence[str] | None, parts: int, listener: Listener | None
    ) -> Iterator[TaskRunner]:
        with Channel(listener or _ignore) as channel:
            reporting = Reporting(channel.endpoint if listener else None, level=self._level)
            threads = self._threads_of(self.size)
            jobs = process_jobs(
                self._all, data, columns, parts, threads=threads, reporting=reporting, listener=listener
            )
            with jobs as found:
                yield found

    def _threads_of(self, members: int) -> int:
        return self._threads or max(1, len(os.sched_getaffinity(0)) // members)

    @contextmanager
    def _all(self) -> Iterator[list[WorkerProcess]]:
        with self._turn, self._first(self.size) as members:
            yield members

    @contextmanager
    def _first(self, count: int) -> Iterator[list[WorkerProcess]]:
        """The first ``count`` workers; if a gang fails, those that have not reported are killed."""
        self._bury(member for member in self._members if not member.alive)
        for rank in sorted(set(range(count)) - {member.rank for member in self._members}):
            self._members.append(WorkerProcess(rank))
        self._members.sort(key=lambda member: member.rank)
        try:
            yield self._members[:count]
        except SparkdlError:
            self._bury(member for member in self._members if member.busy or not member.alive)
            raise
        except BaseException:
            self.close()
            raise

    def _bury(self, members: Iterable[WorkerProcess]) -> None:
        for member in list(members):
            member.kill()
            self._members.remove(member)


def _collect(members: Sequence[WorkerProcess], attempt: int, timeout: float) -> list[WorkerResult]:
    """Exchange the workers' lines, then wait for every outcome.

    Raises:
        WorkerLost: a worker sent no line in time; before its first heartbeat nothing else detects that.
    """
    lines: dict[int, str] = {}
    outcomes: dict[int, WorkerResult] = {}
    deadline: float | None = time.monotonic() + timeout
    ending = False
    while len(outcomes) < len(members):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        waiting = [member for member in members if member.rank not in outcomes]
        ready = wait([end for member in waiting for end in (member.connection, member.sentinel)], left)
        if not ready and not ending:
            raise _absent(next(each.rank for each in members if each.rank not in lines), attempt, timeout)
        if not ready:
            break  # the first failure is known; the others have had their grace period
        for member in waiting:
            if member.connection in ready or member.sentinel in ready:
                _take(member, attempt, lines, outcomes)
        failed = any(outcome.failure for outcome in outcomes.values())
        if failed or len(lines) == len(members):
            for rank in lines:
                # If a worker failed before it sent its line, the others would wait for ever.
                members[rank].send(None if failed else [lines[each] for each in range(len(members))])
            lines.clear()
            if not failed:
                deadline = None
            elif not ending:
                ending, deadline = True, time.monotonic() + _GRACE
    return list(outcomes.values())


def _absent(rank: int, attempt: int, timeout: float) -> WorkerLost:
    place = ErrorContext("launch", rank, socket.gethostname(), attempt)
    return WorkerLost(f"rank {rank} did not come to the rendezvous within {timeout:g} s.", place=place)


def _take(member: WorkerProcess, attempt: int, lines: dict[int, str], outcomes: dict[int, WorkerResult]) -> None:
    try:
        message = member.receive()
    except (EOFError, ConnectionError):
        place = ErrorContext("work", member.rank, socket.gethostname(), attempt)
        failure = Failure("WorkerLost", member.exit_reason(), "", place, False, time.time())
        outcomes[member.rank] = WorkerResult(member.rank, failure=failure)
        return
    if isinstance(message, WorkerResult):
        outcomes[member.rank] = message
        member.busy = False
    else:
        lines[member.rank] = message


def _end(members: Sequence[WorkerProcess]) -> None:
    for member in members:
        if member.busy:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)


def _ignore(event: Event) -> None:
    """Drop an event without a listener."""
