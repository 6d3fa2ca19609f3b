"""A process that has PyTorch loaded and forks workers: a fork takes 30 ms, a fresh interpreter's imports 3 s.

    this process -> zygote   "fork": the worker's environment, import path and file descriptors; "wait": a pid
    zygote -> this process   the worker's pid; the worker's exit code

Unlike multiprocessing's fork server, the zygote does not run the caller's main module again: scripts need no guard. If
the zygote dies or does not answer in time, as after SIGSTOP, its workers live on with unknown exit codes, and the next
fork starts another one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as ready
from multiprocessing.reduction import recv_handle, sendfds
from typing import Any

from sparkdl.cluster.preload import preload
from sparkdl.errors import ClusterUnavailable

START_SECONDS = 300.0  # for a new zygote, which loads PyTorch before it forks the first worker
ANSWER_SECONDS = 30.0  # for a later answer, and for a worker's process to take a message

_MAIN = "import sys; from sparkdl.cluster.zygote import serve; serve(int(sys.argv[1]))"
_UNAVAILABLE = "the process that forks workers {}; see its standard error."


class Worker:
    """A forked worker process; its ``sentinel`` is a pidfd, readable once the process has ended."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self.sentinel = os.pidfd_open(pid)
        self._zygote = zygote
        self._code: int | None = None
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._ended and not ready([self.sentinel], 0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the process ends; raises TimeoutError if it runs after ``timeout`` seconds.

        Returns:
            The exit code, negative if a signal killed the process; None if the zygote has died.
        """
        if not self._ended:
            if not ready([self.sentinel], timeout):
                raise TimeoutError(f"process {self.pid} still runs after {timeout:g} s.")
            code = self._zygote.exit_code(self.pid)
            if not self._ended:  # of several waiting threads only one gets the code
                self._code, self._ended = code, True
        return self._code

    def kill(self) -> None:
        """Kill the process, and wait until it has ended or ``ANSWER_SECONDS`` are over, as in a system call."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            self.wait(ANSWER_SECONDS)

    def close(self) -> None:
        """Close the sentinel of an ended process."""
        os.close(self.sentinel)


class Zygote:
    """The connection to a zygote, which it starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.control, theirs = Pipe()
        limit(self.control, START_SECONDS)
        with theirs:
            command = [sys.executable, "-c", _MAIN, str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=_environment())

    def fork(self, target: str, descriptors: Sequence[int]) -> Worker:
        """Fork a worker, which calls the function ``"module:name"`` with its copies of file descriptors, and ends.

        Raises:
            ClusterUnavailable: the zygote has died or does not answer.
        """
        folder = os.open(".", os.O_RDONLY)
        try:
            standard = [number for number in range(3) if os.path.exists(f"/proc/self/fd/{number}")]
            request = {"target": target, "environment": _environment(), "path": sys.path, "standard": standard}
            return Worker(self, self._ask(request, [folder, *standard, *descriptors]))
        finally:
            os.close(folder)

    def exit_code(self, pid: int) -> int | None:
        """The exit code of an ended worker; None if the zygote has died."""
        with contextlib.suppress(ClusterUnavailable):
            code: int | None = self._ask({"wait": pid})
            return code
        return None

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with self._lock:
            if self.control.closed:
                raise ClusterUnavailable(_UNAVAILABLE.format("has died"))
            # Before anything is sent: it raises OSError if this process is out of file descriptors.
            with socket.fromfd(self.control.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
                end.setblocking(True)  # not the user's default timeout
                try:
                    self.control.send(request | {"descriptors": len(descriptors)})
                    for descriptor in descriptors:
                        sendfds(end, [descriptor])
                    answer = self.control.recv()
                except (EOFError, OSError) as error:
                    self.control.close()  # after part of a message, no further one can be understood
                    self.process.kill()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.process.wait(ANSWER_SECONDS)
                    what = "does not answer" if isinstance(error, BlockingIOError) else "has died"
                    raise ClusterUnavailable(_UNAVAILABLE.format(what)) from error
            limit(self.control, ANSWER_SECONDS)
            return answer


_running: dict[int, Zygote] = {}  # by pid of the process that started it: a forked child needs its own
_starting = threading.Lock()


def zygote() -> Zygote:
    """The zygote of this process, started on demand."""
    with _starting:
        running = _running.get(os.getpid())
        if running is None or running.control.closed or running.process.poll() is not None:
            _running.clear()
            running = _running[os.getpid()] = Zygote()
        return running


def fork(target: str, *descriptors: int) -> Worker:
    """Fork a worker from this process's zygote; if that fails, from another one. See ``Zygote.fork``."""
    with contextlib.suppress(ClusterUnavailable):
        return zygote().fork(target, descriptors)
    return zygote().fork(target, descriptors)


def serve(control: int) -> None:
    """The main loop of a zygote: load PyTorch, then fork a worker for each request until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole foreground group; the parent decides
    preload()
    requests: Connection[Any, Any] = Connection(control)
    while True:
        try:
            request = requests.recv()
            descriptors = [recv_handle(requests) for _ in range(request["descriptors"])]
        except (EOFError, OSError):
            return
        if "wait" in request:
            requests.send(_exit_code(request["wait"]))
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            _work(request, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(pid)


def _exit_code(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the code was collected before
        return None


def _work(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    standard = request["standard"]
    folder, *others = descriptors
    for number, descriptor in zip(standard, others, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.fchdir(folder)
    os.close(folder)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    pkgutil.resolve_name(request["target"])(*others[len(standard) :])


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def limit(connection: Connection[Any, Any], seconds: float) -> None:
    """Let each read or write of a connection raise BlockingIOError if it makes no progress for ``seconds``."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
    os.set_blocking(connection.fileno(), True)
