"""Workers gather their addresses through the driver or rank 0 in milliseconds; Spark's ``allGather`` takes a second.

    worker -> driver   rank and line, in a frame of ``sparkdl.net.protocol``
    driver -> worker   all workers' lines, one frame each; or one frame with the ranks of the missing workers

Lines are missing if some worker does not reach the driver within ``ANSWER_SECONDS`` seconds of the first one. Then,
or if the driver does not answer within twice that time, workers use ``allGather``.

If the driver has no channel, as by default over Spark Connect, rank 0 answers in its place. All workers know rank 0's
host from Spark, its key from the task, and compute its port from the id of the run. They try to meet for
``meeting_seconds``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sparkdl.cluster.protocol import Listener
from sparkdl.errors import InvalidInput, PeerLost
from sparkdl.io.threads import in_background
from sparkdl.net.addresses import split_host
from sparkdl.net.protocol import Connection, Endpoint, ProtocolError
from sparkdl.spark.session import session_of
from sparkdl.telemetry.channel import REQUEST, Channel
from sparkdl.telemetry.recorder import CONNECT_SECONDS

if TYPE_CHECKING:  # it imports torch
    from sparkdl.cluster.group.rendezvous import AllGather
    from sparkdl.cluster.worker import WorkerTask

ANSWER_SECONDS = 30.0
"""Seconds from the first line until the driver stops waiting for the last one."""

_PORTS = range(20_000, 30_000)  # of rank 0: below those from which systems choose
_POLL = 0.01  # seconds
_MEETING = 8.0  # seconds
_READING = 2.0  # seconds for other workers to read rank 0's answer, if it ends at once
_MISSING = b"-"
_SOME = "some workers"
_MOST_NAMES = 8  # that a message lists

logger = logging.getLogger(__name__)


def driver_channel(
    spark: SparkSession, listener: Listener, answer: Callable[[bytes], Sequence[bytes]] | None = None
) -> Channel:
    """The driver's channel, at the address that executors know; raises InvalidInput if the driver cannot listen."""
    address = session_of(spark).channel_address()
    if address is None:
        raise InvalidInput(
            "executors know no address of this client of Spark Connect. If they reach one, set "
            "spark.sparkdl.driver.host to it."
        )
    return Channel(listener, addresses=address[:1], bind=address[1], answer=answer)


class AddressBook:
    """The driver's side: collects the workers' lines, and answers each worker with all of them.

    Args:
        size: number of workers.
        patience: seconds from the first line until the book stops waiting.
    """

    def __init__(self, size: int, patience: float = ANSWER_SECONDS) -> None:
        self._size, self._patience = size, patience
        self._lines: dict[int, bytes] = {}
        self._closed = False
        self._changed = threading.Condition()

    def answer(self, question: bytes) -> Sequence[bytes]:
        """The frames for a worker that sent ``<rank> <line>``; waits for the other workers.

        Raises:
            ProtocolError: the question does not begin with a worker's rank.
        """
        number, _, line = question.partition(b" ")
        if not number.isdigit() or int(number) >= self._size:
            raise ProtocolError(f"a worker gave its rank as {number[:20]!r}; expected 0 to {self._size - 1}")
        with self._changed:
            if not self._closed:
                self._lines[int(number)] = line
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._complete or self._closed, self._patience)
            if not self._complete:
                self.close()
                missing = [str(rank) for rank in range(self._size) if rank not in self._lines]
                return [_MISSING + " ".join(missing).encode()]
            return [self._lines[rank] for rank in range(self._size)]

    def close(self) -> None:
        """Stop waiting: workers that wait, and late ones, learn that lines are missing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def lines(self) -> list[str]:
        """The lines of the workers that have reached the driver."""
        with self._changed:
            return [line.decode() for line in self._lines.values()]

    @property
    def _complete(self) -> bool:
        return len(self._lines) == self._size


def meeting_seconds(task: WorkerTask) -> float:
    """Seconds for which workers try to meet at rank 0: where they cannot, ``allGather`` takes one second."""
    return min(_MEETING, task.timeout / 4)


@contextmanager
def rank_0_endpoint(task: WorkerTask, rank: int, address: str, tasks: Sequence[str]) -> Iterator[Endpoint | None]:
    """Where rank 0 answers while the block runs, which it does in rank 0's own block; None if it cannot listen there.

    Args:
        task: has the id of the run, the size of the gang and the key.
        rank: this worker's.
        address: an address of this host that the other workers can dial.
        tasks: Spark's address of each worker's host, in rank order.
    """
    port = _PORTS[int(task.run, 16) % len(_PORTS)]
    if rank or task.size == 1:
        yield Endpoint((split_host(tasks[0]),), port, task.secret)
        return
    book = AddressBook(task.size, meeting_seconds(task))
    try:
        channel = Channel(
            lambda _: None, addresses=[address], bind=address, key=task.secret, port=port, answer=book.answer
        )
    except InvalidInput:  # another program listens there
        logger.info("rank 0 cannot listen on port %d", port, exc_info=True)
        yield None
        return
    with channel:
        try:
            yield channel.endpoint
        finally:
            book.close()
            channel.await_clients(_READING)


@dataclass
class DriverAllGather:
    """The worker's side, an ``AllGather``.

    Attributes:
        endpoint: of the driver's channel, or of rank 0 in its place; None without one.
        rank: the worker's.
        size: number of workers.
        fallback: gathers the lines without the driver.
        waits: seconds within which the endpoint begins to listen.
        missing: ranks that did not reach the driver, if it said so.
    """

    endpoint: Endpoint | None
    rank: int
    size: int
    fallback: AllGather
    waits: float = 0.0
    missing: tuple[int, ...] = ()

    def __call__(self, line: str) -> Sequence[str]:
        """All workers' lines, in rank order."""
        if self.size == 1:
            return [line]
        reason = "the driver has no channel"
        for address in () if self.endpoint is None else self.endpoint.addresses:
            try:
                lines = self._ask(address, line)
            except (OSError, EOFError, ProtocolError, ValueError) as error:  # ValueError: an invalid host name
                reason = f"the channel at {address} cannot be reached ({error})"
                continue
            if lines is not None:
                return lines
            reason = f"{self.absent()} did not reach the channel in time"
            break
        logger.warning("%s, so this worker meets the others through Spark's allGather", reason)
        return self.fallback(line)

    def absent(self, hosts: Sequence[str] = ()) -> str:
        """The missing workers, with their ``hosts`` if these are known, for messages."""
        names = [f"rank {rank} on {hosts[rank]}" if hosts else f"rank {rank}" for rank in self.missing]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        return ", ".join([*names[:_MOST_NAMES], *more]) or _SOME

    def _connect(self, address: str, endpoint: Endpoint) -> Connection:
        deadline = time.monotonic() + self.waits
        while True:
            try:
                return Connection.open(address, endpoint, CONNECT_SECONDS)
            except ConnectionRefusedError:  # rank 0 may begin later than this worker
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL)

    def _ask(self, address: str, line: str) -> list[str] | None:
        assert self.endpoint is not None
        with closing(self._connect(address, self.endpoint)) as connection:
            deadline = time.monotonic() + 2 * ANSWER_SECONDS  # a driver that runs answers in half of it
            connection.send([REQUEST + f"{self.rank} {line}".encode()], deadline)
            if (first := connection.receive(deadline=deadline)).startswith(_MISSING):
                self.missing = tuple(map(int, first.removeprefix(_MISSING).split()))
                return None
            others = [connection.receive(deadline=deadline) for _ in range(self.size - 1)]
            return [frame.decode() for frame in (first, *others)]


@dataclass
class Rendezvous:
    """A gathering with a time limit; Spark's own, ``spark.barrier.sync.timeout``, is a year.

    Nothing else detects a worker that stops, or whose host fails, before its first heartbeat.
    """

    all_gather: AllGather
    timeout: float
    absent: Callable[[], str] = lambda: _SOME  # the workers that did not join, for messages
    given_up: bool = False  # whether a worker was absent after ``timeout`` seconds

    def __call__(self, line: str) -> Sequence[str]:
        """All workers' lines; raises PeerLost if a worker is absent after ``timeout`` seconds."""
        answer = in_background(lambda: self.all_gather(line), "sparkdl-rendezvous")
        if not wait([answer], self.timeout).done:
            self.given_up = True
            raise PeerLost(f"{self.absent()} did not join the rendezvous within {self.timeout:g} s.")
        return answer.result()
