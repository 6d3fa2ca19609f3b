"""A Spark standalone cluster on loopback: daemons of a master and of workers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

_SPARK = Path(pyspark.__file__).parent
_LONG = 60.0  # seconds to wait for a daemon


@contextlib.contextmanager
def standalone(folder: str, *, workers: int = 2) -> Iterator[str]:
    """Start the daemons, give the master's URL, and end them with the block.

    Args:
        folder: of the daemons' logs and work.
        workers: number of workers; each offers one core and 2 GiB.
    """
    with contextlib.ExitStack() as daemons:
        master = Path(folder, "master.log")
        daemons.enter_context(_daemon(master, folder, "master.Master"))
        url = _find_in_log(master, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            size = ["--cores", "1", "--memory", "2g", "--work-dir", f"{folder}/work-{number}"]
            log = Path(folder, f"worker-{number}.log")
            daemons.enter_context(_daemon(log, folder, "worker.Worker", *size, url))
            _find_in_log(log, r"(Successfully registered) with master")
        yield url


@contextlib.contextmanager
def _daemon(log: Path, folder: str, name: str, *arguments: str) -> Iterator[None]:
    program = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    network = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_DIRS": folder,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*program, *network, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors
        process.wait(_LONG)


def _find_in_log(log: Path, pattern: str) -> str:
    """Wait for a line of a daemon's log."""
    ends = time.monotonic() + _LONG
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        if time.monotonic() > ends:
            raise TimeoutError(f"{log} does not say {pattern!r}:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)
    return found[1]
