"""A process of this machine that serves as a gang's worker repeatedly."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from sparkdl.cluster.group.network import Address
from sparkdl.cluster.group.rendezvous import RendezvousSpec
from sparkdl.cluster.worker import WorkerTask, run_worker
from sparkdl.cluster.zygote import fork
from sparkdl.data.tables import read
from sparkdl.errors import PeerLost
from sparkdl.io.pickling import unship


@dataclass(frozen=True)
class Call:
    """A pickled function for a process to call outside a gang; it has no arguments and must not raise."""

    function: bytes


class WorkerProcess:
    """A process, forked from this process's zygote, that waits for tasks; it ends whenever this process ends.

    Args:
        rank: its rank in every gang.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.busy = False
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = fork("sparkdl.cluster.worker_process:serve", theirs.fileno(), lifeline)
        finally:
            theirs.close()
            os.close(lifeline)
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        # Readable once the process ends. The connection does not show that while a child of the process, such as a
        # loader's worker, holds its end open.
        self.sentinel = self._process.sentinel

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.alive

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def start(self, task: WorkerTask, file: str | None) -> None:
        """Start a task on the shard in ``file``."""
        self.busy = True
        self.send((task, self.rank, file))

    def call(self, function: bytes) -> None:
        """Start a call of a pickled function."""
        self.busy = True
        self.send(Call(function))

    def send(self, message: object) -> None:
        """Send a message; ``receive`` detects a dead process."""
        with contextlib.suppress(ConnectionError):
            self.connection.send_bytes(cloudpickle.dumps(message))  # a column's ``decode`` may be a notebook's

    def receive(self) -> Any:
        """The next message of the process.

        Raises:
            EOFError, ConnectionError: the process ended without a complete message.
        """
        if not self.connection.poll():
            raise EOFError
        try:
            packed = self.connection.recv_bytes()
        except OSError as error:  # multiprocessing raises it for a truncated message
            raise EOFError from error
        return cloudpickle.loads(packed)

    def exit_reason(self) -> str:
        """How the process ended, for a message."""
        code = self._process.wait(timeout=10)
        if code is None:
            how = "ended; the process that had forked it has ended as well, so that its exit code is unknown"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the process of rank {self.rank} (pid {self.pid}) {how}."

    def kill(self) -> None:
        """Kill the process."""
        if self._lifeline < 0:
            return
        self._process.kill()
        self.connection.close()
        os.close(self._lifeline)
        self._process.close()
        self._lifeline = -1


def serve(connection: int, lifeline: int) -> None:
    """The main loop of a worker process: receive a task, run it, send the outcome."""
    # Ctrl-C reaches the whole foreground group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    parent: Connection[Any, Any] = Connection(connection)

    def exchange(line: str) -> list[str]:
        parent.send(line)
        lines: list[str] | None = parent.recv()
        if lines is None:
            raise PeerLost("another member failed before the gang had met.")
        return lines

    while True:
        try:
            message = parent.recv()
        except EOFError:
            return
        if isinstance(message, Call):
            parent.send(unship(message.function)())
            continue
        task, rank, file = message
        meeting = RendezvousSpec(
            rank, task.size, task.run, task.attempt, Address("127.0.0.1"), timeout=task.timeout, device=task.device
        )
        parent.send(run_worker(task, meeting, exchange, read(file)))


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the parent's end of the pipe closes
    os._exit(1)
