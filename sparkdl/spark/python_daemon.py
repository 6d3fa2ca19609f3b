"""pyspark's daemon, which forks Python workers that have PyTorch loaded.

    spark.python.daemon.module    sparkdl.spark.python_daemon

The daemon loads PyTorch on demand, after SIGUSR1 from one of its workers (``load_pytorch``), so that applications that
never train or score keep a small daemon. It drops the archives that Spark puts on the module search path if pyspark is
installed in a folder too, with equal files: Python keeps no bytecode of archives, and each new worker would read their
directories again.

This module imports neither pyarrow nor pandas, which start threads, nor torch.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any

from sparkdl.cluster.preload import preload

_PID = "SPARKDL_PYTHON_DAEMON"  # environment variable of the daemon and its workers: the daemon's process

_NOT_INSTALLED = re.compile("/(tests|benchmark)/")  # folders of pyspark.zip that the package leaves out


def load_pytorch(rows: Iterable[Any]) -> Iterator[Any]:
    """A task that lets the executor load PyTorch, and returns at once.

    This worker's daemon loads it, and the worker ends, so that the next task gets one with PyTorch: Spark ends the
    worker of a task that leaves input. Under pyspark's own daemon the worker itself loads it in a thread.
    """
    if "torch" in sys.modules:
        yield from rows
    elif not _signal_daemon():
        yield from rows
        # Not torch._dynamo: its circular imports could meet a task's, and Python then shows modules half-initialized.
        threading.Thread(target=import_module, args=("torch",), name="sparkdl-warm-up", daemon=True).start()


def main() -> None:
    """Run the daemon until Spark closes its standard input."""
    drop_installed(sys.path)
    from pyspark.daemon import manager

    os.environ[_PID] = str(os.getpid())
    signal.signal(signal.SIGUSR1, _preload)
    manager()


def drop_installed(path: list[str]) -> None:
    """Remove the archives from a module search path whose files its folders have too, such as Spark's pyspark.zip."""
    folders = [place for place in path if os.path.isdir(place)]
    for archive in filter(zipfile.is_zipfile, [*path]):
        # Python cannot import from a damaged archive, and passes over it.
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(archive) as files:
            modules = [file for file in files.infolist() if file.filename.endswith((".py", ".pyc", ".so"))]
            needed = [file for file in modules if not _NOT_INSTALLED.search(file.filename)]
            if all(_size(folders, file.filename) == file.file_size for file in needed):  # Spark's jar has no modules
                path.remove(archive)


def _size(folders: list[str], name: str) -> int | None:
    package = name.partition("/")[0]
    for folder in folders:
        if os.path.exists(os.path.join(folder, package)):
            file = os.path.join(folder, name)
            return os.path.getsize(file) if os.path.exists(file) else None
    return None


def _signal_daemon() -> bool:
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


if __name__ == "__main__":
    main()
