"""Rounds, and members and trials in tasks, over Spark Connect keep the contract of all clusters."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sparkdl.errors import InvalidInput, WorkerLost
from sparkdl.io import files
from sparkdl.spark import connect_tasks
from sparkdl.spark.cluster import SparkCluster
from tests.connect import fits
from tests.contracts.map_reduce_contract import ARRAYS, COLUMNS, LossContract, ReductionContract, Sums, Whole
from tests.faults.fault import executor_of
from tests.sessions import frame

pytestmark = pytest.mark.slow

STATE = {"factor": 1.5}


@dataclass(frozen=True)
class KillsExecutor(Sums):
    """Kills the executor of shard 1, once.

    Attributes:
        mark: a file that says so.
    """

    mark: str = ""

    def map(self, state, shard):
        if shard.index == 1 and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(executor_of(os.getpid()), signal.SIGKILL)
            signal.pause()
        return super().map(state, shard)


def persisted(spark):
    """The number of persisted RDDs and DataFrames."""
    return spark.sparkContext._jsc.getPersistentRDDs().size()


def shard_folders(spark):
    """The folders of packed shards on the disks of executors."""
    return [str(path) for path in Path(os.environ["SPARK_LOCAL_DIRS"]).rglob("sparkdl-shards-*")]


class TestConnect(ReductionContract, LossContract):
    tries = 2  # spark.task.maxFailures of the server

    @pytest.fixture
    def cluster(self, spark, tmp_path):
        return SparkCluster(spark, 2, run_directory=str(tmp_path / "run"))

    def make_data(self, arrays):
        rows = len(arrays["id"])
        return frame(arrays) if rows else frame(ARRAYS).limit(0)  # pyspark infers no schema of empty tables

    def test_large_states_and_works_are_in_files_that_end_with_them(self, jobs, monkeypatch, tmp_path):
        monkeypatch.setattr(connect_tasks, "_INLINE", 1 << 17)
        written = []
        write = files.write
        monkeypatch.setattr(files, "write", lambda path, data: (written.append(path), write(path, data)))
        small, _ = jobs.run(Sums(), STATE)
        large, _ = jobs.run(Sums(), STATE | {"padding": torch.zeros(100_000)})
        assert torch.equal(small["sum"], large["sum"])
        assert len(written) == 1
        assert not list((tmp_path / "run/shared").iterdir())

    def test_large_states_without_a_run_directory_raise(self, spark, monkeypatch):
        monkeypatch.setattr("sparkdl.spark.session.connect._MOST_BYTES", 1 << 17)
        with SparkCluster(spark, 2).map_reduce(self.make_data(ARRAYS), COLUMNS) as jobs:
            with pytest.raises(InvalidInput, match=r"weights or the model of a round take 0 MB.*Set runDir"):
                jobs.run(Sums(), STATE | {"padding": torch.zeros(100_000)})
            jobs.run(Sums(), STATE)

    def test_large_results_of_tasks_arrive_in_chunks(self, jobs):
        [result] = jobs.each(Whole(large=2_000_000), [0], all_rows=True)
        assert result.tensors["large"].shape == (2_000_000, 3)
        assert bool((result.tensors["large"] == 1).all())

    def test_stop_lets_a_round_end(self, jobs, monkeypatch):
        monkeypatch.setattr(connect_tasks, "cancelled_on_stop", lambda *_: pytest.fail("its work would be lost"))
        assert int(jobs.run(Sums(), STATE)[0]["rows"]) == len(ARRAYS["id"])

    def test_nothing_stays_on_the_server(self, spark, server, cluster):
        before = server.call(persisted)
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, num_shards=2) as jobs:
            list(jobs.each(Whole(), [0, 1], all_rows=True))
            folders = server.call(shard_folders)
            assert server.call(persisted) > before
            assert [view.name for view in spark.catalog.listTables() if view.name.startswith("sparkdl_")]
        assert folders
        assert server.call(persisted) == before
        assert server.call(shard_folders) == []
        assert not [view.name for view in spark.catalog.listTables() if view.name.startswith("sparkdl_")]

    @pytest.mark.chaos
    @pytest.mark.parametrize("large", [False, True])
    def test_round_survives_a_lost_executor(self, jobs, tmp_path, on_executors, large):
        expected, _ = jobs.run(Sums(), STATE)
        if large:
            on_executors()
            jobs.run(Sums(), STATE)
        actual, _ = jobs.run(KillsExecutor(mark=str(tmp_path / "mark")), STATE)
        assert (tmp_path / "mark").exists()
        assert torch.equal(actual["sum"], expected["sum"])
        assert torch.equal(jobs.run(Sums(), STATE)[0]["sum"], expected["sum"])


@pytest.mark.parametrize("times", [1, 100])
def test_chunks_of_two_runs_of_a_task_are_not_put_together(spark, monkeypatch, times):
    """As if the executor of a result is lost between two queries."""
    queries, size = [], connect_tasks._FETCHED + 1

    def chunks(_, rows):
        queries.append(rows)
        run = min(len(queries) - 1, times)
        first, last = (0, size - 1) if len(queries) % 2 else (size - 1, size)
        return [(3, piece, f"run{run} {size}", b"%d" % run) for piece in range(first, last)]

    monkeypatch.setattr(connect_tasks.ConnectJobs, "collected", chunks)
    jobs = connect_tasks.ConnectJobs(spark, None)
    if times == 1:
        assert jobs._joined(spark.range(1).selectExpr("id shard", "id piece"), 3, f"run0 {size}") == b"1" * size
        assert len(queries) == 4
        return
    with pytest.raises(WorkerLost, match="the result of task 3 was lost 4 times"):
        jobs._joined(spark.range(1).selectExpr("id shard", "id piece"), 3, f"run0 {size}")


def test_bits_are_those_of_a_classic_session(server, spark):
    assert fits.fitted_in_tasks(spark) == server.call(fits.fitted_in_tasks)


def test_fits_resume_in_the_other_kind_of_session(server, spark):
    directory = server.call(fits.begun)
    fits.begun(spark, Path(directory, "of the client"))
    assert fits.resumed(spark, directory) == server.call(fits.resumed_from_the_client)
