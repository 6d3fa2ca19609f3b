"""Rounds on Spark keep the contract; reductions on executors are bit-identical."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark import SparkContext
from pyspark.sql import Row

from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.spark import task_runner as tasks
from sparkdl.spark.classic_tasks import ClassicJobs
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.executor_tasks import store_of
from tests.contracts.map_reduce_contract import (
    ARRAYS,
    COLUMNS,
    DiesAt,
    LossContract,
    ReductionContract,
    Sums,
    Whole,
)
from tests.sessions import frame

pytestmark = pytest.mark.cluster

STATE = {"factor": 1.5}


@dataclass(frozen=True)
class FailsAt(DiesAt):
    """The operating system fails in one task."""

    def map(self, state: Any, shard: Any) -> Any:
        before = len(list(Path(self.marks).glob(f"{state}-*")))
        if state == self.index and before < self.times:
            Path(self.marks, f"{state}-{before}").touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().map(state, shard)


@dataclass(frozen=True)
class Heavy(Sums):
    """A work with a model in it."""

    ballast: bytes = b""


class TestSpark(ReductionContract, LossContract):
    tries = 2  # spark.task.maxFailures of the session

    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, 2)

    def make_data(self, arrays):
        return frame(arrays)

    @pytest.mark.chaos
    @pytest.mark.parametrize("times", [1, 100])
    def test_error_of_system_is_retried_and_ends_no_other_task(self, jobs, tmp_path, times):
        work = FailsAt(marks=str(tmp_path), index=1, times=times)
        one, other, last = jobs.each(work, [0, 1, 2], all_rows=True)
        assert (one.trouble, last.trouble) == (None, None)
        assert sorted(mark.name for mark in tmp_path.iterdir()) == ["0-0", "1-0", "1-1", "2-0"]
        if times == 1:
            assert other.trouble is None
            return
        with pytest.raises(WorkerFailed, match=r"member 1: OSError: .*No space left on device"):
            raise other.error("member 1")

    @pytest.mark.parametrize("large", [0, 10_000])
    def test_small_results_come_at_once(self, jobs, monkeypatch, large):
        fetched: list[int] = []
        plain = SparkContext.runJob
        monkeypatch.setattr(SparkContext, "runJob", lambda *given: (fetched.append(given[3]), plain(*given))[1])
        result = list(jobs.each(Whole(large=large), [3, 1, 2], all_rows=True))
        assert [(one.index, one.note["given"]) for one in result] == [(3, 3), (1, 1), (2, 2)]
        assert len(fetched) == (3 if large else 0)

    def test_chunks_reduced_without_all_shards_do_not_count(self, jobs, monkeypatch, on_executors):
        # As if an executor is lost while the driver fetches the chunks, with the files of its shards.
        direct, _ = jobs.run(Sums(), STATE)
        tries: list[Any] = []
        fetch = ClassicJobs._one_by_one

        def of_fewer(row: Any) -> Row:
            return Row(**{**row.asDict(), "shard": row.shard - 1})

        def fetched(self: Any, rows: Any, *counts: int) -> Iterator[Any]:
            tries.append(rows)
            return fetch(self, rows.map(of_fewer) if len(tries) == 1 else rows, *counts)

        on_executors()
        monkeypatch.setattr(ClassicJobs, "_one_by_one", fetched)
        result, _ = jobs.run(Sums(), STATE)
        assert torch.equal(result["sum"], direct["sum"])
        assert len(tries) == 2

    def test_large_work_runs_once_after_small_one(self, jobs, monkeypatch, tmp_path):
        monkeypatch.setattr(tasks, "_DIRECT", 1 << 12)
        large = DiesAt(large=1000, marks=str(tmp_path), times=0)
        jobs.run(large, STATE)
        for path in tmp_path.iterdir():
            path.unlink()
        jobs.run(Sums(), STATE)
        jobs.run(large, STATE)
        assert marks(tmp_path) == {"0": 1, "1": 1, "2": 1}

    @pytest.mark.parametrize("cut", [False, True])
    def test_only_shard_without_files_is_mapped_from_its_blocks(self, jobs, on_executors, tmp_path, cut):
        direct, _ = jobs.run(Sums(), STATE)
        if cut:
            on_executors()
            jobs.run(Sums(), STATE)
        for folder in folders(jobs):
            shutil.rmtree(folder / "shard-00001", ignore_errors=True)
        result, _ = jobs.run(DiesAt(marks=str(tmp_path), times=0), STATE)
        assert torch.equal(result["sum"], direct["sum"])
        assert marks(tmp_path) == {"0": 1, "1": 1, "2": 1}
        assert any((folder / "shard-00001").exists() for folder in folders(jobs))

    def test_large_work_is_broadcast_once(self, jobs, spark):
        spark.sparkContext._jvm.System.gc()
        files = Path(spark.sparkContext._temp_dir)
        before = set(files.iterdir())
        for number, ballast in enumerate([b"x", b"x", b"x", b"y"]):
            jobs.run(Heavy(ballast=ballast * (2 << 20)), STATE, number=number)
            assert len(set(files.iterdir()) - before) == 1

    def test_files_are_deleted_with_the_data(self, spark, cluster):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, num_shards=1) as jobs:
            [own] = folders(jobs)
            assert [path.name for path in own.iterdir()] == ["shard-00000"]
            # As a slower copy of the task leaves them on an executor that is unknown to the driver.
            others = spark.sparkContext.parallelize(range(2), 2).mapPartitions(partial(copied, jobs._key, str(own)))
            copies = {Path(path) for path in others.collect()} | {own}
            assert len(copies) == 2
        assert not any(path.exists() for path in copies)

    def test_bad_and_missing_rows_raise(self, cluster, monkeypatch):
        """No files stay."""
        stores: list[Path] = []
        close = tasks.SparkTaskRunner.close
        monkeypatch.setattr(tasks.SparkTaskRunner, "close", lambda jobs: (stores.extend(folders(jobs)), close(jobs)))
        super().test_bad_and_missing_rows_raise(cluster)
        assert stores
        assert not any(folder.exists() for folder in stores)

    @pytest.mark.parametrize("same", [True, False])
    def test_lost_shards_are_recomputed_and_must_be_equal(self, cluster, tmp_path_factory, same):
        data = frame(ARRAYS).repartition(5, "id")
        data = data if same else data.mapInPandas(shifted, data.schema)
        with cluster.map_reduce(data, COLUMNS, shuffle=False) as jobs:
            assert len(jobs.shard_rows) == 5  # without a shuffle, rows stay in their partitions
            before, _ = jobs.run(Sums(), STATE, number=1)
            for lost in (jobs._jobs._triggers, jobs._jobs._packed):
                lost.unpersist(blocking=True)
            for folder, *_ in os.walk(tmp_path_factory.getbasetemp()):
                if Path(folder).name == f"sparkdl-shards-{jobs._key}":
                    shutil.rmtree(folder)
            if same:
                assert torch.equal(jobs.run(Sums(), STATE, number=2)[0]["sum"], before["sum"])
                return
            with pytest.raises(InvalidInput, match=r"shard \d in round 2: .* Spark recomputed its rows .*idCol"):
                jobs.run(Sums(), STATE, number=2)


def folders(jobs: Any) -> list[Path]:
    """Where the files are: on this machine, whichever executor it is."""
    return [
        Path(folder)
        for folder in set(jobs._jobs._triggers.mapPartitionsWithIndex(partial(stores, jobs._key)).collect())
    ]


def stores(key: str, index: int, rows: Iterable[Any]) -> Iterator[str]:
    """The folder on an executor for the files of a shard."""
    for _ in rows:
        continue
    yield str(store_of(key, index).folder)


def marks(folder: Path) -> dict[str, int]:
    """How often each shard was mapped."""
    return dict(sorted(Counter(path.name.partition("-")[0] for path in folder.iterdir()).items()))


def copied(key: str, source: str, rows: Iterable[Any]) -> Iterator[str]:
    """The files as another executor would have them, if it has none."""
    [_] = rows
    target = store_of(key, 0).folder
    if not target.exists():
        shutil.copytree(source, target)
    yield str(target)


def shifted(frames):
    """Rows that differ each time they are computed."""
    for rows in frames:
        rows["x"] = [row + random.SystemRandom().random() for row in rows["x"]]
        yield rows
