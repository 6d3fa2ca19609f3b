"""A process of this machine that serves as a gang's worker repeatedly."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import cloudpickle

from sparkdl.cluster.worker import run_worker
from sparkdl.cluster.zygote import ANSWER_SECONDS, fork, limit
from sparkdl.data.tables import read
from sparkdl.errors import PeerLost
from sparkdl.io.pickling import unship


class WorkerProcess:
    """A process, forked from this process's zygote, that waits for tasks; it ends whenever this process ends."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.busy = self._unresponsive = False
        self.connection, theirs = Pipe()
        limit(self.connection, ANSWER_SECONDS)
        lifeline, self._lifeline = os.pipe()
        try:
            self.process = fork("sparkdl.cluster.worker_process:serve", theirs.fileno(), lifeline)
        finally:
            theirs.close()
            os.close(lifeline)
        # Readable once the process ends. The connection does not show that while a child of the process, such as a
        # loader's worker, holds its end open.
        self.sentinel = self.process.sentinel

    def start(self, task: object) -> None:
        """Start a task: ``WorkerTask``, rank and file of the shard, or a pickled function, which must not raise."""
        self.busy = True
        self.send(task)

    def send(self, message: object) -> None:
        """Send a message; ``receive`` detects a dead process."""
        with contextlib.suppress(ConnectionError):
            try:
                self.connection.send_bytes(cloudpickle.dumps(message))  # a column's ``decode`` may be a notebook's
            except BlockingIOError:
                self.give_up()

    def receive(self) -> Any:
        """The next message; raises EOFError or ConnectionError if the process ended without a complete one."""
        if not self.connection.poll():
            raise EOFError
        try:
            packed = self.connection.recv_bytes()
        except OSError as error:  # multiprocessing raises it for a truncated message
            if isinstance(error, BlockingIOError):
                self.give_up()
            raise EOFError from error
        return cloudpickle.loads(packed)

    def is_stopped(self) -> bool:
        """Whether the process is stopped, as after SIGSTOP."""
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            return "State:\tT" in Path(f"/proc/{self.process.pid}/status").read_text()
        return False

    def exit_reason(self) -> str:
        """How the process ended, for a message."""
        code = self.process.wait(timeout=10)
        if self._unresponsive:
            how = f"did not answer for {ANSWER_SECONDS:g} s, as after SIGSTOP, and was killed"
        elif code is None:
            how = "ended with an unknown exit code, since the process that forked it has ended too"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the process of rank {self.rank} (pid {self.process.pid}) {how}."

    def kill(self) -> None:
        """Kill the process."""
        if self._lifeline < 0:
            return
        self.process.kill()
        self.connection.close()
        os.close(self._lifeline)
        self.process.close()
        self._lifeline = -1

    def give_up(self) -> None:
        """Kill the process, since it does not answer."""
        self._unresponsive = True
        self.process.kill()


def wait_for(processes: Sequence[WorkerProcess], timeout: float | None = None) -> list[WorkerProcess]:
    """Wait for processes that sent a message or have ended; none after ``timeout`` seconds."""
    deadline, stopped = time.monotonic() + (math.inf if timeout is None else timeout), set[WorkerProcess]()
    ends = [end for process in processes for end in (process.connection, process.sentinel)]
    while not (ready := wait(ends, min(ANSWER_SECONDS, max(0.0, deadline - time.monotonic())))):
        if time.monotonic() >= deadline:
            return []
        before, stopped = stopped, {process for process in processes if process.is_stopped()}
        for process in before & stopped:
            process.give_up()
    return [process for process in processes if process.connection in ready or process.sentinel in ready]


def serve(connection: int, lifeline: int) -> None:
    """The main loop of a worker process: receive a task, run it, send the outcome."""
    # Ctrl-C reaches the whole foreground group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    gc.freeze()  # each gang ends with a full collection, which would search all imports since the fork
    parent: Connection[Any, Any] = Connection(connection)

    def all_gather(line: str) -> list[str]:
        parent.send(line)
        lines: list[str] | None = parent.recv()
        if lines is None:
            raise PeerLost("another worker failed before the rendezvous.")
        return lines

    while True:
        try:
            message = parent.recv()
        except EOFError:
            return
        if isinstance(message, bytes):
            parent.send(unship(message)())
        else:
            task, rank, file = message
            parent.send(run_worker(task, rank, "127.0.0.1", all_gather, read(file)))


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the parent's end of the pipe closes
    os._exit(1)
