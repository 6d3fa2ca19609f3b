"""A gang of processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.failure import Failure, WorkerResult, raise_first_cause
from sparkdl.cluster.inline import TableCluster
from sparkdl.cluster.local_tasks import ShardedData, process_jobs
from sparkdl.cluster.protocol import Capacity, Listener
from sparkdl.cluster.tasks import TaskRunner
from sparkdl.cluster.worker import WorkerTask
from sparkdl.cluster.worker_process import WorkerProcess, wait_for
from sparkdl.data.tables import Batches, spill
from sparkdl.errors import ErrorContext, InvalidInput, SparkdlError, WorkerLost
from sparkdl.io.fields import Count, Positive, checked
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import observed
from sparkdl.telemetry.log_forwarding import level_of
from sparkdl.telemetry.task_recorder import Reporting

_GRACE = 10.0  # seconds for the other workers to report after one has failed


class LocalCluster(TableCluster):
    """Processes of this machine; the first gang starts them and later gangs reuse them.

    One gang runs at a time; gangs of other threads wait. A smaller gang uses the first processes.

    Args:
        size: workers of a gang.
        device: ``"cpu"``, or ``"cuda"`` for one GPU per worker, which tasks of rounds use too.
        backend: ``"nccl"``, ``"gloo"``, or ``"auto"`` for NCCL on GPUs and gloo on CPUs. With gloo, workers may share
            GPUs.
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
        backend: str = "auto",
        threads: int | None = None,
        timeout: float = 600.0,
        logs: str = "off",
    ) -> None:
        size, threads = checked(size, Count, "size"), checked(threads, Count | None, "threads")
        needed = 0 if device == "cpu" else 1 if backend == "gloo" else size
        if torch.cuda.device_count() < needed:
            raise InvalidInput(
                f"LocalCluster({size}, device='cuda') needs {needed} GPUs; this machine has "
                f"{torch.cuda.device_count()}. With backend='gloo' workers may share GPUs."
            )
        self.size, self._device, self._threads = size, device, threads
        self._timeout, self._level, self._backend = checked(timeout, Positive, "timeout"), level_of(logs), backend
        self._workers: list[WorkerProcess] = []
        self._turn = threading.Lock()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers' processes; the next gang starts new ones."""
        self._kill(self._workers)

    def capacity(self) -> Capacity:
        """Capacity for all workers on a CPU, else for as many as there are GPUs; with gloo they share GPUs."""
        gpus = self._device == "cuda" and self._backend != "gloo"
        workers = torch.cuda.device_count() if gpus else self.size
        return Capacity(workers, workers)

    def _run(
        self, task: WorkerTask, tables: list[Batches], listener: Listener | None, cancellation: CancellationToken
    ) -> list[Any]:
        with (
            observed(listener) as shown,
            Channel(shown) as channel,
            tempfile.TemporaryDirectory(prefix="sparkdl-") as folder,
        ):
            task = replace(
                task,
                timeout=self._timeout,
                device=self._device,
                backend=self._backend,
                threads=self._threads_of(task.size),
                endpoint=channel.endpoint if listener else None,
                heartbeat=cancellation.heartbeat,
                level=self._level,
            )
            files = [spill(table, os.path.join(folder, f"shard-{rank}.arrow")) for rank, table in enumerate(tables)]
            with self._processes(task.size) as workers, cancellation.stopping(partial(_kill_busy, workers)):
                for worker, file in zip(workers, files, strict=True):
                    worker.start((task, worker.rank, file))
                results = _collect(workers, task.attempt, self._timeout)
                return raise_first_cause(results, shown, attempt=task.attempt)

    @contextmanager
    def _jobs(self, data: ShardedData, listener: Listener | None) -> Iterator[TaskRunner]:
        with observed(listener) as shown, Channel(shown) as channel:
            reporting = Reporting(channel.endpoint if listener else None, level=self._level)
            with process_jobs(
                partial(self._processes, self.size),
                data,
                threads=self._threads_of(self.size),
                device=self._device,
                reporting=reporting,
                listener=shown,
            ) as jobs:
                yield jobs

    def _threads_of(self, size: int) -> int:
        return self._threads or max(1, len(os.sched_getaffinity(0)) // size)

    @contextmanager
    def _processes(self, count: int) -> Iterator[list[WorkerProcess]]:
        with self._turn:
            self._kill(worker for worker in self._workers if not worker.process.alive)
            missing = set(range(count)) - {worker.rank for worker in self._workers}
            self._workers += map(WorkerProcess, sorted(missing))
            self._workers.sort(key=lambda worker: worker.rank)
            try:
                yield self._workers[:count]
            except SparkdlError:
                self._kill(worker for worker in self._workers if worker.busy or not worker.process.alive)
                raise
            except BaseException:
                self.close()
                raise

    def _kill(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in list(workers):
            worker.kill()
            self._workers.remove(worker)


def _collect(workers: Sequence[WorkerProcess], attempt: int, timeout: float) -> list[WorkerResult]:
    lines: dict[int, str] = {}
    results: dict[int, WorkerResult] = {}
    deadline: float | None = time.monotonic() + timeout
    ending = False
    while len(results) < len(workers):
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait_for([worker for worker in workers if worker.rank not in results], remaining)
        if not ready and not ending:  # nothing else detects a worker before its first heartbeat
            absent = next(worker.rank for worker in workers if worker.rank not in lines)
            context = ErrorContext("launch", absent, socket.gethostname(), attempt)
            raise WorkerLost(f"rank {absent} did not join the rendezvous within {timeout:g} s.", context=context)
        if not ready:
            break  # the first failure is known; the others have had their grace period
        for worker in ready:
            message = _receive(worker, attempt)
            if isinstance(message, WorkerResult):
                results[worker.rank] = message
            else:
                lines[worker.rank] = message
        failed = any(result.failure for result in results.values())
        if failed or len(lines) == len(workers):
            for rank in lines:
                # If a worker failed before it sent its line, the others would wait for ever.
                workers[rank].send(None if failed else [lines[peer] for peer in range(len(workers))])
            lines.clear()
            if not failed:
                deadline = None
            elif not ending:
                ending, deadline = True, time.monotonic() + _GRACE
    return list(results.values())


def _receive(worker: WorkerProcess, attempt: int) -> WorkerResult | str:
    try:
        message: WorkerResult | str = worker.receive()
    except (EOFError, ConnectionError):
        context = ErrorContext("work", worker.rank, socket.gethostname(), attempt)
        failure = Failure("WorkerLost", worker.exit_reason(), "", context, False, time.time())
        return WorkerResult(worker.rank, failure=failure)
    worker.busy = isinstance(message, str)
    return message


def _kill_busy(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        if worker.busy:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGKILL)
