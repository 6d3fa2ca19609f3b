"""Gangs on the hosts: plain processes in a given order of ranks, or a Spark standalone cluster."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts import Host, until
from benchmarks.recovery.standalone import standalone
from benchmarks.session import ROOT, session
from sparkdl import SparkCluster
from sparkdl.cluster.failure import raise_first_cause
from sparkdl.cluster.worker import Work, WorkerTask, run_worker
from sparkdl.io.pickling import ship, unship

MEETING = 60.0  # seconds until all workers have started
PATIENCE = 600.0  # seconds of a collective
LONGEST = 7200.0  # seconds of a gang
THREADS = {"OMP_NUM_THREADS": "1"}  # a worker's: more would compete for the few cores


class Processes:
    """Gangs of plain processes, a new one for each worker.

    Args:
        folder: a folder that all hosts share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._gangs = folder, 0

    def run(self, work: Work, placement: Sequence[Host]) -> list[Any]:
        """The values of ``work(world, None)``, where ``placement`` has the host of each rank."""
        self._gangs += 1
        folder = self._folder / f"gang-{self._gangs}"
        folder.mkdir()
        task = WorkerTask(ship(work), len(placement), folder.name, timeout=PATIENCE, threads=1)
        (folder / "task").write_bytes(pickle.dumps(task))
        environment = os.environ | THREADS | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "benchmarks.slow_links.gangs", str(folder)]
        processes = []
        try:
            for rank, host in enumerate(placement):
                line = [*command, str(rank), host.address]
                processes.append(host.start(line, env=environment, out=folder / f"{rank}.log"))
            packed = [_written(folder / f"{rank}.result", process) for rank, process in enumerate(processes)]
            return raise_first_cause([pickle.loads(each) for each in packed])  # noqa: S301 ours
        finally:
            for process in processes:
                process.kill()
                process.wait()


class OnSpark:
    """Gangs of a Spark standalone cluster with an executor on each host, in Spark's order of ranks.

    Each gang has its own cluster and driver.

    Args:
        folder: a folder that all hosts share.
        head: the host of the master and the driver.
    """

    def __init__(self, folder: Path, head: Host) -> None:
        self._folder, self._head, self._gangs = folder, head, 0

    def run(self, work: Work, placement: Sequence[Host]) -> list[Any]:
        """The values of ``work(world, None)``, where ``placement`` has the host of each executor."""
        self._gangs += 1
        folder = self._folder / f"gang-{self._gangs}"
        folder.mkdir()
        (folder / "work").write_bytes(ship(work))
        with standalone(str(folder), hosts=[self._head, *placement]) as url:
            line = [sys.executable, "-m", "benchmarks.slow_links.gangs", str(folder), url, self._head.address]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(folder)}
            driver = self._head.start([*line, str(len(placement))], env=environment, out=folder / "driver.log")
            values: list[Any] = pickle.loads(_written(folder / "driver.result", driver))  # noqa: S301 ours
            driver.wait(MEETING)
        return values


def drive(folder: Path, url: str, address: str, size: int) -> None:
    """The driver of a gang."""
    network = {"spark.driver.host": address, "spark.driver.bindAddress": address}
    with session("slow links", executors=size, mebibytes=1024, master=url, **network) as spark:
        values = SparkCluster(spark, size, timeout=PATIENCE).gang(unship((folder / "work").read_bytes()))
        _write(folder / "driver.result", pickle.dumps(values))


def _written(file: Path, process: subprocess.Popen[bytes]) -> bytes:
    """The bytes that a process writes into a file; its log is beside the file."""
    until(lambda: file.exists() or process.poll() is not None, str(file), timeout=LONGEST)
    if not file.exists():
        log = file.with_suffix(".log").read_text(errors="replace")
        raise RuntimeError(f"a process ended with {process.returncode} and without {file.name}:\n{log}")
    return file.read_bytes()


def serve(folder: Path, rank: int, address: str) -> None:
    """One worker; the workers gather their lines by files in ``folder``."""
    task: WorkerTask = pickle.loads((folder / "task").read_bytes())  # noqa: S301 ours

    def all_gather(line: str) -> list[str]:
        _write(folder / f"{rank}.line", line.encode())
        files = [folder / f"{other}.line" for other in range(task.size)]
        until(lambda: all(file.exists() for file in files), "the lines of all workers", timeout=MEETING)
        return [file.read_text() for file in files]

    _write(folder / f"{rank}.result", pickle.dumps(run_worker(task, rank, address, all_gather, ())))


def _write(file: Path, data: bytes) -> None:
    file.with_suffix(".tmp").write_bytes(data)
    file.with_suffix(".tmp").replace(file)


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    if len(words) == 2:
        serve(Path(folder), int(words[0]), words[1])
    else:
        drive(Path(folder), words[0], words[1], int(words[2]))
