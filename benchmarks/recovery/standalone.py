"""A Spark standalone cluster: daemons of a master and of workers, on loopback or on several hosts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

from benchmarks.hosts import Host
from benchmarks.session import ROOT

_SPARK = Path(pyspark.__file__).parent
_LONG = 60.0  # seconds to wait for a daemon


@contextlib.contextmanager
def standalone(folder: str, *, workers: int = 2, hosts: Sequence[Host | None] = ()) -> Iterator[str]:
    """Start the daemons, give the master's URL, and end them with the block.

    Args:
        folder: of the daemons' logs and work.
        workers: number of workers; each offers one core and 2 GiB.
        hosts: of the master and of each worker; default: all on loopback.
    """
    place, *places = hosts or [None] * (1 + workers)
    with contextlib.ExitStack() as daemons:
        master = Path(folder, "master.log")
        daemons.enter_context(_daemon(master, folder, place, "master.Master"))
        url = _find_in_log(master, r"Starting Spark master at (spark://\S+)")
        for number, place in enumerate(places):
            size = ["--cores", "1", "--memory", "2g", "--work-dir", f"{folder}/work-{number}"]
            log = Path(folder, f"worker-{number}.log")
            daemons.enter_context(_daemon(log, folder, place, "worker.Worker", *size, url))
            _find_in_log(log, r"(Successfully registered) with master")
        yield url


@contextlib.contextmanager
def _daemon(log: Path, folder: str, host: Host | None, name: str, *arguments: str) -> Iterator[None]:
    address = "127.0.0.1" if host is None else host.address
    program = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    network = ["--host", address, "--port", "0", "--webui-port", "0"]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_DIRS": folder,
        "SPARK_LOCAL_IP": address,
        "SPARK_NO_DAEMONIZE": "1",
    }
    process = _start([*program, *network, *arguments], environment, log, host)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors
        process.wait(_LONG)


def _start(command: list[str], environment: dict[str, str], log: Path, host: Host | None) -> subprocess.Popen[bytes]:
    if host is not None:
        return host.start(command, env=environment, out=log)
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _find_in_log(log: Path, pattern: str) -> str:
    """Wait for a line of a daemon's log."""
    ends = time.monotonic() + _LONG
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        if time.monotonic() > ends:
            raise TimeoutError(f"{log} does not say {pattern!r}:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)
    return found[1]
