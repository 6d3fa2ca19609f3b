"""A worker inside its barrier task."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark import BarrierTaskContext

from sparkdl.cluster.failure import WorkerResult
from sparkdl.cluster.group.rendezvous import AllGather
from sparkdl.cluster.worker import WorkerTask, run_worker
from sparkdl.errors import InvalidInput
from sparkdl.net.addresses import worker_address
from sparkdl.spark.python_worker import freeze_imports, local_directory
from sparkdl.spark.rendezvous import DriverAllGather, Rendezvous, meeting_seconds, rank_0_endpoint
from sparkdl.spark.slots.task_resources import assigned_gpus
from sparkdl.spark.tensor_chunks import record_batch

SCHEMA = "rank int, piece int, payload binary"

_PIECE = 1 << 20  # bytes of an outcome per row: small Arrow batches for the driver's sockets


@dataclass(frozen=True)
class BarrierTask:
    """The work of each task of the barrier stage."""

    task: WorkerTask
    network: str | None  # the address or interface name that workers use; None to detect it
    names: tuple[str, ...]  # of the columns, in order of arrival

    def run(self, batches: Iterable[pa.RecordBatch], began: float) -> Iterator[pa.RecordBatch]:
        """Run a worker on this task's partition; its imports ``began`` at this time. Yields its outcome in chunks."""
        freeze_imports()
        context = BarrierTaskContext.get()
        rank, tasks = context.partitionId(), [info.address for info in context.getTaskInfos()]
        address, trouble = "127.0.0.1", None
        try:
            address = worker_address(rank, tasks, override=self.network)
        except InvalidInput as error:
            trouble = error
        task = replace(self.task, threads=context.cpus(), gpus=assigned_gpus(context))
        # Peers know rank 0 by Spark's address of its host, which is not in a network that the user names.
        deputy = task.endpoint is None and self.network is None
        place = rank_0_endpoint(task, rank, address, tasks) if deputy else nullcontext(task.endpoint)
        waits = meeting_seconds(task) if deputy else 0.0
        with place as endpoint, _interruptible():
            driver = DriverAllGather(endpoint, rank, task.size, context.allGather, waits)
            rendezvous = Rendezvous(driver, task.timeout, lambda: driver.absent(tasks))
            all_gather = rendezvous if trouble is None else _refusing(rendezvous, trouble)
            named = (batch.rename_columns(list(self.names)) for batch in batches)
            folder = local_directory(os.getpid())
            outcome = run_worker(task, rank, address, all_gather, named, directory=folder, began=began)
        if rendezvous.given_up and outcome.failure is not None:
            # Raise, so that Spark ends the stage: the job would otherwise wait for the absent workers.
            raise outcome.failure.error()
        yield from pieces(outcome)


def pieces(outcome: WorkerResult) -> Iterator[pa.RecordBatch]:
    """Split a pickled outcome into rows of at most 1 MiB."""
    packed = cloudpickle.dumps(outcome)
    for piece, first in enumerate(range(0, len(packed), _PIECE)):
        yield record_batch(SCHEMA, outcome.rank, piece, packed[first : first + _PIECE])


def assemble(rows: Iterable[Any]) -> list[WorkerResult]:
    """Restore the outcomes from the rows of ``pieces``, in any order."""
    packed: dict[int, list[bytes]] = {}
    for rank, _, payload in sorted(rows):
        packed.setdefault(rank, []).append(payload)
    return [cloudpickle.loads(b"".join(payloads)) for payloads in packed.values()]


def _refusing(all_gather: AllGather, error: InvalidInput) -> AllGather:
    """A gathering that reports an error to the other workers, which would wait for ever, and then raises it."""

    def refuse(line: str) -> Sequence[str]:
        all_gather(json.dumps(json.loads(line) | {"trouble": error.message}))
        raise error

    return refuse


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Spark's SIGHUP end the process even in native code, where a Python handler would have to wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
