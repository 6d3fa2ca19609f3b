"""Gangs on the hosts: plain processes in a given order of ranks, or a Spark standalone cluster."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.session import ROOT
from sparkdl import SparkCluster
from sparkdl.cluster.failure import WorkerResult, raise_first_cause
from sparkdl.cluster.worker import Work, WorkerTask, run_worker
from sparkdl.io.pickling import ship, unship
from tests.hosts.hosts import Host, until
from tests.hosts.standalone import Standalone

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
                line, log = [*command, str(rank), host.address], folder / f"{rank}.log"
                processes.append(host.start(line, env=environment, out=log))
            return raise_first_cause([_result(folder, rank, each) for rank, each in enumerate(processes)])
        finally:
            for process in processes:
                process.kill()
                process.wait()


class OnSpark:
    """Gangs of a Spark standalone cluster, one worker on each host, in Spark's order of ranks."""

    def __init__(self, cluster: Standalone) -> None:
        self._cluster = cluster

    def run(self, work: Work, placement: Sequence[Host]) -> list[Any]:
        """The values of ``work(world, None)``, as plain data; the placement gives only the number of workers."""
        file = self._cluster.shared / "work"
        file.write_bytes(ship(work))
        values: list[Any] = self._cluster.driver().call(drive, file, len(placement)).result(LONGEST)
        return values


def drive(file: str, size: int) -> list[Any]:
    """Run a gang in the driver's session."""
    return SparkCluster(SparkSession.active(), size, timeout=PATIENCE).gang(unship(Path(file).read_bytes()))


def _result(folder: Path, rank: int, process: subprocess.Popen[bytes]) -> WorkerResult:
    file = folder / f"{rank}.result"
    until(lambda: file.exists() or process.poll() is not None, f"the result of rank {rank}", timeout=LONGEST)
    if not file.exists():
        log = (folder / f"{rank}.log").read_text(errors="replace")
        raise RuntimeError(f"rank {rank} ended with {process.returncode} and without a result:\n{log}")
    result: WorkerResult = pickle.loads(file.read_bytes())  # noqa: S301 a process that this one started wrote it
    return result


def main(folder: Path, rank: int, address: str) -> None:
    """One worker; the workers exchange their lines by files in ``folder``."""
    task: WorkerTask = pickle.loads((folder / "task").read_bytes())  # noqa: S301 the process that started this one wrote it

    def exchange(line: str) -> list[str]:
        _write(folder / f"{rank}.line", line.encode())
        files = [folder / f"{other}.line" for other in range(task.size)]
        until(lambda: all(file.exists() for file in files), "the lines of all workers", timeout=MEETING)
        return [file.read_text() for file in files]

    _write(folder / f"{rank}.result", pickle.dumps(run_worker(task, rank, address, exchange, ())))


def _write(file: Path, data: bytes) -> None:
    file.with_suffix(".tmp").write_bytes(data)
    file.with_suffix(".tmp").replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
