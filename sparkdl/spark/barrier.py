"""A member inside its barrier task."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark import BarrierTaskContext

from sparkdl.cluster.failure import Outcome
from sparkdl.cluster.group.network import Address, dialable, split_host
from sparkdl.cluster.group.rendezvous import Exchange, Meeting
from sparkdl.cluster.worker import Task, run_member
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.io.threads import in_background
from sparkdl.spark.python_worker import spare_imports

SCHEMA = "rank int, piece int, payload binary"

_PIECE = 1 << 20  # bytes of an outcome in a row: Arrow batches and driver sockets stay small


@dataclass(frozen=True)
class BarrierTask:
    """What runs in each task of the barrier stage.

    Attributes:
        task: what every member is told.
        network: the address or the name of the interface that members use; None to find it.
        names: the columns' names, in the order in which they arrive.
    """

    task: Task
    network: str | None = None
    names: tuple[str, ...] = ()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take part in the gang with this task's partition; yields the outcome in pieces."""
        spare_imports()
        context = BarrierTaskContext.get()
        hosts = [split_host(info.address) for info in context.getTaskInfos()]
        rank = context.partitionId()
        rendezvous = Rendezvous(context.allGather, self.task.timeout)
        exchange: Exchange = rendezvous
        try:
            address = dialable(hosts[rank], peers=hosts, override=self.network)
        except InvalidInput as error:
            address, exchange = Address("127.0.0.1"), _refusing(rendezvous, error)
        meeting = Meeting(
            rank,
            self.task.size,
            self.task.run,
            self.task.attempt,
            address,
            timeout=self.task.timeout,
            device=self.task.device,
        )
        task = replace(self.task, threads=context.cpus())
        with _interruptible():
            named = (pa.RecordBatch.from_arrays(batch.columns, names=list(self.names)) for batch in batches)
            outcome = run_member(task, meeting, exchange, named, directory=_local_directory())
        if rendezvous.given_up and outcome.failure is not None:
            # The job would not end before those do that did not come; for an error Spark ends the whole stage.
            raise outcome.failure.error()
        yield from pieces(outcome)


class Rendezvous:
    """An exchange that is given up after a time: Spark's own limit, ``spark.barrier.sync.timeout``, is a year.

    While members meet nobody else would notice that one does not come: the others wait, and of one that was stopped at
    once, or whose task was sent to a host that is gone, there has been no heartbeat to miss.

    Args:
        exchange: gives every member's line to every member.
        timeout: seconds.

    Attributes:
        given_up: whether not all members came.
    """

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        self.given_up = False
        self._exchange = exchange
        self._timeout = timeout

    def __call__(self, line: str) -> Sequence[str]:
        """All members' lines.

        Raises:
            PeerLost: not all members came in time.
        """
        answer = in_background(lambda: self._exchange(line), "sparkdl-rendezvous")
        if not wait([answer], self._timeout).done:
            self.given_up = True
            raise PeerLost(f"not all members came to the rendezvous within {self._timeout:g} s.")
        return answer.result()


def pieces(outcome: Outcome) -> Iterator[pa.RecordBatch]:
    """An outcome as rows that are small enough to travel."""
    packed = cloudpickle.dumps(outcome)
    for piece, first in enumerate(range(0, len(packed), _PIECE)):
        yield pa.RecordBatch.from_pydict(
            {
                "rank": pa.array([outcome.rank], pa.int32()),
                "piece": pa.array([piece], pa.int32()),
                "payload": pa.array([packed[first : first + _PIECE]], pa.binary()),
            }
        )


def assemble(rows: Iterable[Any]) -> list[Outcome]:
    """The outcomes that ``pieces`` took apart, from rows in any order."""
    packed: dict[int, list[tuple[int, bytes]]] = {}
    for rank, piece, payload in rows:
        packed.setdefault(rank, []).append((piece, bytes(payload)))
    return [cloudpickle.loads(b"".join(payload for _, payload in sorted(found))) for found in packed.values()]


def _refusing(exchange: Exchange, error: InvalidInput) -> Exchange:
    """An exchange that raises, but not before it has told the others, who would wait for ever."""

    def tell(line: str) -> Sequence[str]:
        exchange(json.dumps(json.loads(line) | {"trouble": error.message}))
        raise error

    return tell


def _local_directory() -> str | None:
    """A folder on the executor's local disks; Spark removes it with the executor."""
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(folder)]
    return folders[os.getpid() % len(folders)] if folders else None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Spark's signal end the process also while native code waits for a peer.

    A Python handler would only run when native code returns, and leave a zombie that holds its GPU.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
