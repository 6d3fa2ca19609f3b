"""Rounds on Spark keep the contract; what is reduced on executors comes to the same bits."""

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
from sparkdl.spark import tasks
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.executor_tasks import store_of
from tests.contracts.map_reduce_contract import (
    ARRAYS,
    COLUMNS,
    DiesAt,
    LossContract,
    MapReduceContract,
    Marked,
    Raises,
    Sums,
    Whole,
)
from tests.sessions import frame

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class RefusedAt(DiesAt):
    """The operating system refuses something in one task."""

    def map(self, state: Any, part: Any) -> Any:
        before = len(list(Path(self.marks).glob(f"{state}-*")))
        if state == self.index and before < self.times:
            Path(self.marks, f"{state}-{before}").touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().map(state, part)


class TestSpark(MapReduceContract, LossContract):
    tries = 2  # spark.task.maxFailures of the session

    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, 2)

    def make_data(self, arrays):
        return frame(arrays)

    @pytest.mark.chaos
    @pytest.mark.parametrize("times", [1, 100])
    def test_a_task_that_the_system_refuses_does_not_end_the_others(self, jobs, tmp_path, times):
        """What it refuses once is tried again, and what it refuses every time is an error of that task alone."""
        work = RefusedAt(marks=str(tmp_path), index=1, times=times)
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
        found = list(jobs.each(Whole(large=large), [3, 1, 2], all_rows=True))
        assert [(one.index, one.note["given"]) for one in found] == [(3, 3), (1, 1), (2, 2)]
        assert len(fetched) == (3 if large else 0)

    @pytest.mark.slow
    def test_pieces_that_executors_reduce_come_to_the_same_bits(self, jobs, monkeypatch):
        whole, notes = jobs.run(Sums(large=2_000_000), {"factor": 1.5})
        monkeypatch.setattr(tasks, "_DIRECT", 0)
        found, others = jobs.run(Sums(large=2_000_000), {"factor": 1.5})
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
        assert others == notes

    def test_pieces_that_were_reduced_again_without_all_parts_do_not_count(self, jobs, monkeypatch):
        """As after an executor went away while the driver fetched them, and the files of its parts with it."""
        whole, _ = jobs.run(Sums(), {"factor": 1.5})
        tries: list[Any] = []
        fetch = tasks.SparkTaskRunner._one_by_one

        def fetched(self: Any, rows: Any, pieces: int) -> Iterator[Any]:
            tries.append(rows)
            return fetch(self, rows.map(of_fewer) if len(tries) == 1 else rows, pieces)

        monkeypatch.setattr(tasks, "_DIRECT", 0)
        monkeypatch.setattr(tasks.SparkTaskRunner, "_one_by_one", fetched)
        found, _ = jobs.run(Sums(), {"factor": 1.5})
        assert torch.equal(found["sum"], whole["sum"])
        assert len(tries) == 2

    def test_a_small_work_in_between_does_not_make_a_large_one_run_twice(self, jobs, monkeypatch, tmp_path):
        monkeypatch.setattr(tasks, "_DIRECT", 1 << 12)
        large = Marked(large=1000, marks=str(tmp_path))
        jobs.run(large, {"factor": 1.0})
        for path in tmp_path.iterdir():
            path.unlink()
        jobs.run(Sums(), {"factor": 1.0})
        jobs.run(large, {"factor": 1.0})
        assert marks(tmp_path) == {"0": 1, "1": 1, "2": 1}

    def test_what_executors_reduce_keeps_its_kind(self, jobs, monkeypatch):
        monkeypatch.setattr(tasks, "_DIRECT", 0)
        self.test_results_of_any_kind_keep_their_kind_and_order(jobs)
        with pytest.raises(WorkerFailed, match="shard 1 in round 3"):
            jobs.run(Raises(), {"factor": 1.0}, number=3)

    @pytest.mark.parametrize("cut", [False, True])
    def test_only_a_part_whose_files_are_not_there_is_mapped_from_its_blocks(self, jobs, monkeypatch, tmp_path, cut):
        whole, _ = jobs.run(Sums(), {"factor": 1.5})
        if cut:
            monkeypatch.setattr(tasks, "_DIRECT", 0)
            jobs.run(Sums(), {"factor": 1.5})
        for folder in folders(jobs):
            shutil.rmtree(folder / "part-00001", ignore_errors=True)
        found, _ = jobs.run(Marked(marks=str(tmp_path)), {"factor": 1.5})
        assert torch.equal(found["sum"], whole["sum"])
        assert marks(tmp_path) == {"0": 1, "1": 1, "2": 1}
        assert any((folder / "part-00001").exists() for folder in folders(jobs))

    def test_a_large_work_is_sent_once(self, jobs, spark):
        spark.sparkContext._jvm.System.gc()
        files = Path(spark.sparkContext._temp_dir)
        before = set(files.iterdir())
        work = Heavy(ballast=b"x" * (2 << 20))
        for number in range(3):
            jobs.run(work, {"factor": 1.0}, number=number)
            assert len(set(files.iterdir()) - before) == 1
        jobs.run(Heavy(ballast=b"y" * (2 << 20)), {"factor": 1.0})
        assert len(set(files.iterdir()) - before) == 1

    def test_the_files_go_with_the_data_wherever_they_are(self, spark, cluster):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, parts=1) as jobs:
            [own] = folders(jobs)
            assert [path.name for path in own.iterdir()] == ["part-00000"]
            # As a copy of a task leaves them that was slower than another one, on an executor that is not heard of.
            others = spark.sparkContext.parallelize(range(2), 2).mapPartitions(partial(copied, jobs._key, str(own)))
            copies = {Path(path) for path in others.collect()} | {own}
            assert len(copies) == 2
        assert not any(path.exists() for path in copies)

    def test_data_that_are_refused_leave_no_files(self, cluster, monkeypatch):
        made: list[Any] = []
        original = tasks.SparkTaskRunner.close
        monkeypatch.setattr(tasks.SparkTaskRunner, "close", lambda jobs: (made.extend(folders(jobs)), original(jobs)))
        self.test_rows_that_cannot_be_used_are_refused(cluster)
        assert not any(folder.exists() for folder in made)

    def test_rows_stay_in_their_partitions_where_they_are_not_shuffled(self, cluster):
        data = frame(ARRAYS).repartition(5)
        with cluster.map_reduce(data, COLUMNS, shuffle=False) as jobs:
            assert len(jobs.parts) == 5

    @pytest.mark.parametrize("same", [True, False])
    def test_parts_that_were_lost_are_computed_again_and_must_be_the_same(self, cluster, tmp_path_factory, same):
        data = frame(ARRAYS).repartition(2, "id")
        data = data if same else data.mapInPandas(shifted, data.schema)
        with cluster.map_reduce(data, COLUMNS, shuffle=False) as jobs:
            before, _ = jobs.run(Sums(), {"factor": 1.0}, number=1)
            lose(jobs, tmp_path_factory.getbasetemp())
            if same:
                assert torch.equal(jobs.run(Sums(), {"factor": 1.0}, number=2)[0]["sum"], before["sum"])
                return
            with pytest.raises(InvalidInput, match=r"shard \d in round 2: its rows have come back different.*idCol"):
                jobs.run(Sums(), {"factor": 1.0}, number=2)


@dataclass(frozen=True)
class Heavy(Sums):
    """A work with a model in it."""

    ballast: bytes = b""


def folders(jobs: Any) -> list[Path]:
    """Where the files are: on this machine, whichever executor it is."""
    return [Path(folder) for folder in set(jobs._triggers.mapPartitionsWithIndex(partial(stores, jobs._key)).collect())]


def stores(key: str, index: int, rows: Iterable[Any]) -> Iterator[str]:
    """Where an executor has the files of a part, or would have them."""
    for _ in rows:
        continue
    yield str(store_of(key, index).folder)


def lose(jobs: Any, base: Path) -> None:
    """What Spark keeps of the data, and their files wherever an executor has any, as if all of them had gone."""
    for kept in (jobs._triggers, jobs._packed):
        kept.unpersist(blocking=True)
    for folder, *_ in os.walk(base):
        if Path(folder).name == f"sparkdl-parts-{jobs._key}":
            shutil.rmtree(folder)


def marks(folder: Path) -> dict[str, int]:
    """Part -> how often it was mapped."""
    return dict(sorted(Counter(path.name.partition("-")[0] for path in folder.iterdir()).items()))


def copied(key: str, source: str, rows: Iterable[Any]) -> Iterator[str]:
    """The files as another executor would have them, where it has none."""
    [_] = rows
    target = store_of(key, 0).folder
    if not target.exists():
        shutil.copytree(source, target)
    yield str(target)


def of_fewer(row: Any) -> Row:
    """A reduced piece that lacks a part."""
    return Row(**{**row.asDict(), "part": row.part - 1})


def shifted(frames):
    """Rows that are others each time they are computed."""
    for rows in frames:
        rows["x"] = [row + random.SystemRandom().random() for row in rows["x"]]
        yield rows
