"""Python workers of sparkdl's daemon have PyTorch loaded; lost daemons and workers are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import WorkerLost
from sparkdl.spark import python_daemon, warm_up
from sparkdl.spark.cluster import SparkCluster
from tests.listening import LONG

FACTS = "daemon long, threads long, loaded boolean, draw double"


def facts(rows: Iterable[object]) -> Iterator[tuple[int, int, bool, float]]:
    """A task of an RDD, about its Python worker."""
    deque(rows, maxlen=0)
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    assert not [place for place in sys.path if place.endswith((".jar", "pyspark.zip"))]
    yield os.getppid(), threads, "torch._dynamo" in sys.modules, np.random.rand()


def facts_in_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same as a task of a DataFrame."""
    columns = [pa.array([value]) for value in next(facts(batches))]
    yield pa.RecordBatch.from_arrays(columns, names=["daemon", "threads", "loaded", "draw"])


def warm(spark):
    spark.sparkContext.parallelize([0, 1], 2).barrier().mapPartitions(list).count()  # both executors have registered
    SparkCluster(spark, 2).warm_up()
    for thread in threading.enumerate():
        if thread.name == "sparkdl-warm-up":
            thread.join(LONG)


def test_workers_of_rdds_and_frames_come_from_loaded_daemons(spark):
    warm(spark)
    assert warm_up._cold(spark) == set()
    tasks = spark.sparkContext.parallelize([0, 1], 2).mapPartitions(facts).collect()
    rows = [tuple(row) for row in spark.range(0, 2, 1, 2).mapInArrow(facts_in_arrow, FACTS).collect()]
    assert len({daemon for daemon, *_ in tasks}) == 2
    assert {daemon for daemon, *_ in tasks} == {daemon for daemon, *_ in rows}
    assert {(threads, loaded) for _, threads, loaded, _ in tasks + rows} == {(1, True)}
    assert len({draw for *_, draw in tasks}) == 2


def test_pysparks_own_daemon_needs_no_pytorch_and_its_workers_load_it():
    script = (
        "import sys, threading; from sparkdl.spark.python_daemon import load_pytorch\n"
        "before = {'torch', 'pyarrow', 'pandas'} & set(sys.modules); assert not before, before\n"
        "assert [*load_pytorch([1, 2])] == [1, 2]\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'sparkdl-warm-up']\n"
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG)


def test_archives_whose_modules_are_installed_leave_the_path(tmp_path):
    installed = tmp_path / "installed"
    (installed / "package").mkdir(parents=True)
    (installed / "package" / "__init__.py").write_text("x = 1\n")
    archives = {
        "same.zip": {"package/__init__.py": "x = 1\n", "package/tests/test_x.py": ""},
        "classes.jar": {"X.class": ""},
        "other.zip": {"package/__init__.py": "x = 1 + 1\n"},
        "more.zip": {"package/__init__.py": "x = 1\n", "package/more.py": ""},
        "single.zip": {"module.py": ""},
    }
    for name, files in archives.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
    damaged = (tmp_path / "same.zip").read_bytes().replace(b"PK\x01\x02", b"XXXX")
    (tmp_path / "damaged.zip").write_bytes(damaged)
    path = [str(tmp_path / name) for name in (*archives, "damaged.zip", "absent.zip", "installed")]
    python_daemon.drop_installed(path)
    names = ["other.zip", "more.zip", "single.zip", "damaged.zip", "absent.zip", "installed"]
    assert [Path(place).name for place in path] == names


def test_daemon_without_pytorch_says_so_once_and_lives(monkeypatch, capsys):
    def manager():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setenv(python_daemon._PID, "")
    monkeypatch.setattr(python_daemon, "preload", Mock(side_effect=ImportError("No module named 'torch'")))
    monkeypatch.setattr("pyspark.daemon.manager", manager)
    monkeypatch.setattr("sys.path", [*sys.path])
    before = signal.getsignal(signal.SIGUSR1)
    try:
        python_daemon.main()
    finally:
        signal.signal(signal.SIGUSR1, before)
    err = capsys.readouterr().err
    assert err.count("cannot load PyTorch") == err.count("No module named 'torch'") == 1


@dataclass(frozen=True)
class KillsOnce:
    """Rank 1 of the first attempt kills its daemon, or only itself."""

    mark: Path
    daemon: bool

    def __call__(self, world, shard):
        if world.rank == 1 and not self.mark.exists():
            self.mark.touch()
            if self.daemon:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return [each["rank"] for each in world.all_gather_json("ranks", {"rank": world.rank})]


@pytest.mark.slow
@pytest.mark.parametrize("daemon", [False, True], ids=["worker", "daemon"])
def test_gang_survives_killed_worker_and_daemon(spark, tmp_path, daemon):
    supervisor = Supervisor(SparkCluster(spark, 2), back_off=0)
    assert supervisor.gang(KillsOnce(tmp_path / "mark", daemon)) == [[0, 1]] * 2
    assert [(type(failure), failure.rank) for failure in supervisor.failures] == [(WorkerLost, 1)]
