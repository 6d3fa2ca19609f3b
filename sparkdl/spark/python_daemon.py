"""pyspark's daemon, which forks Python workers that have PyTorch loaded.

    spark.python.daemon.module    sparkdl.spark.python_daemon

The daemon loads PyTorch on demand, after SIGUSR1 from one of its workers (``load_pytorch``); all workers that it forks
from then on have it. Applications that never train or score keep a small daemon, and other tasks may hold the slots
while the daemon loads.

This module imports neither pyarrow nor pandas, which start threads, nor torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from pyspark.daemon import manager

from sparkdl.cluster.preload import preload

_PID = "SPARKDL_PYTHON_DAEMON"  # environment variable of the daemon and its workers: the daemon's process


def load_pytorch(rows: Iterable[Any]) -> Iterator[Any]:
    """A task that lets the executor load PyTorch, and returns at once.

    This worker's daemon loads it, and the worker ends, so that the next task gets one with PyTorch: Spark ends the
    worker of a task that leaves input. Under pyspark's own daemon the worker itself loads it in a thread.
    """
    if "torch" in sys.modules:
        yield from rows
    elif not _signal_daemon():
        yield from rows
        threading.Thread(target=_import, name="sparkdl-warm-up", daemon=True).start()


def main() -> None:
    """Run the daemon until Spark closes its standard input."""
    os.environ[_PID] = str(os.getpid())
    signal.signal(signal.SIGUSR1, _preload)
    manager()


def _signal_daemon() -> bool:
    """Let this worker's daemon load PyTorch; False if it is pyspark's own."""
    daemon = os.getppid()
    if os.environ.get(_PID) != str(daemon):
        return False
    os.kill(daemon, signal.SIGUSR1)
    return True


def _preload(number: int, frame: FrameType | None) -> None:
    if os.environ[_PID] != str(os.getpid()):  # a worker, which inherits the handler
        return
    # Several workers signal at a time, and a nested import of the same modules would fail.
    signal.signal(signal.SIGUSR1, _ignore)
    try:
        preload()
    except Exception:  # it would end the daemon
        sys.stderr.write("sparkdl's Python daemon cannot load PyTorch; each of its workers tries by itself.\n")
        traceback.print_exc()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, programs that workers start do not inherit a handler."""


def _import() -> None:
    # Not torch._dynamo: its circular imports could meet a task's, and Python then shows modules half-initialized.
    import torch  # noqa: F401


if __name__ == "__main__":
    main()
