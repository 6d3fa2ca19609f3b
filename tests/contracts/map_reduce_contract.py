"""Guarantees of every cluster for rounds. A concrete test class has a fixture ``cluster``, and ``make_data``."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.cluster.tasks import Tensors
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard, numbers
from sparkdl.errors import InvalidInput, WorkerFailed, WorkerLost

ROWS = 101
ARRAYS = {
    "id": np.random.default_rng(0).permutation(ROWS).astype(np.int64),
    "x": np.random.default_rng(1).normal(size=(ROWS, 3)),
    "client": np.arange(ROWS, dtype=np.int64) % 7,
}
COLUMNS = Columns((InputColumn("x"),), row_id=InputColumn("id", "int64"), floating="float64")


@dataclass(frozen=True)
class Sums:
    """Sums of the rows of a shard, times a factor in the state; the note describes the shard."""

    large: int = 0

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        x, ids = numbers(shard.tensors, "x"), numbers(shard.tensors, "id")
        order = torch.arange(shard.rows) if shard.order is None else shard.order.long()
        note = {"index": shard.index, "count": shard.count, "shards": list(shard.shard_rows)}
        tensors = {"sum": x[order].sum(0) * state["factor"], "rows": torch.tensor(shard.rows)}
        if self.large:
            tensors["large"] = torch.full((self.large, 3), float(shard.index + 1))
        return tensors, note | {"ids": ids[order].tolist()}

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        return {name: tensor + right[name] for name, tensor in left.items()}


@dataclass(frozen=True)
class Kinds(Sums):
    """Tensors of other kinds than float32: halves, scalars, an empty one, one under two names."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        once = torch.ones(3, dtype=torch.int64)
        tensors = {"z": torch.full((2, 2), 0.5, dtype=torch.float16), "none": torch.empty(0, 3, dtype=torch.bfloat16)}
        return {**tensors, "one": once, "same": once, "a": torch.tensor(1.0, dtype=torch.float64)}, None


@dataclass(frozen=True)
class Clients(Sums):
    """The note lists the clients of a shard."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        return {}, numbers(shard.tensors, "client").unique().tolist()


@dataclass(frozen=True)
class Whole(Sums):
    """Sums; a task gets its index in place of a state."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        tensors, note = super().map(state if isinstance(state, dict) else {"factor": 1.0}, shard)
        return tensors, note | {"given": state}


@dataclass(frozen=True)
class Raises(Whole):
    """Raises in shard 1 of a round, or in task 1."""

    kind: type[Exception] = LookupError

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        if (shard.index if isinstance(state, dict) else state) == 1:
            raise self.kind("no such thing")
        return super().map(state, shard)


@dataclass(frozen=True)
class DiesAt(Whole):
    """Kills its process in one shard of a round, or in one task, and leaves a file each time that any begins.

    Attributes:
        marks: a folder.
        index: of the shard or task.
        times: how often it dies.
    """

    marks: str = ""
    index: int = 0
    times: int = 1

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        index = shard.index if isinstance(state, dict) else state
        before = len(list(Path(self.marks).glob(f"{index}-*")))
        Path(self.marks, f"{index}-{before}").touch(exist_ok=False)
        if index == self.index and before < self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().map(state, shard)


class Widens(Sums):
    """Halves whose sums are floats."""

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        return {"half": torch.full((5,), 0.25, dtype=torch.float16)}, None

    def reduce(self, left: Tensors, right: Tensors) -> Tensors:
        return {name: tensor.float() + right[name].float() for name, tensor in left.items()}


class MapReduceContract:
    """Every test packs the data once."""

    def make_data(self, arrays: dict[str, np.ndarray]) -> Any:
        """Arrays ``[rows, ...]`` as the cluster takes them."""
        return arrays

    @pytest.fixture
    def jobs(self, cluster):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, num_shards=3) as runner:
            yield runner

    def test_rounds_sum_each_row_once_with_the_same_bits(self, jobs):
        one, notes = jobs.run(Sums(), {"factor": 2.0}, number=1)
        assert [note["index"] for note in notes] == [0, 1, 2]
        assert {tuple(note["shards"]) for note in notes} == {jobs.shard_rows}
        assert [len(note["ids"]) for note in notes] == list(jobs.shard_rows)
        assert sorted(row for note in notes for row in note["ids"]) == list(range(ROWS))
        assert all(note["ids"] == sorted(note["ids"]) for note in notes)
        assert np.allclose(one["sum"].numpy(), 2 * ARRAYS["x"].sum(0), rtol=1e-12)
        assert int(one["rows"]) == ROWS
        large, _ = jobs.run(Sums(large=400_000), {"factor": 2.0, "padding": torch.zeros(300_000)}, number=2)
        assert large["large"].shape == (400_000, 3)
        assert bool((large["large"] == 6).all())
        assert torch.equal(large["sum"], one["sum"])

    def test_results_keep_their_dtype_shape_and_order(self, jobs):
        tensors, notes = jobs.run(Kinds(), {})
        assert list(tensors) == ["z", "none", "one", "same", "a"]
        assert notes == [None] * 3
        assert torch.equal(tensors["z"], torch.full((2, 2), 1.5, dtype=torch.float16))
        assert (tensors["none"].shape, tensors["none"].dtype) == ((0, 3), torch.bfloat16)
        assert torch.equal(tensors["one"], tensors["same"])
        assert (tensors["one"].tolist(), tensors["one"].dtype) == ([3.0] * 3, torch.int64)
        assert (tensors["a"].item(), tensors["a"].dtype, tensors["a"].shape) == (3.0, torch.float64, ())

    def test_shards_without_rows_are_mapped(self, cluster):
        few = {name: array[:3] for name, array in ARRAYS.items()}
        with cluster.map_reduce(self.make_data(few), COLUMNS, num_shards=5) as jobs:
            tensors, notes = jobs.run(Sums(), {"factor": 1.0})
        assert (len(jobs.shard_rows), sum(jobs.shard_rows)) == (5, 3)
        assert 0 in jobs.shard_rows
        assert [note["index"] for note in notes] == [0, 1, 2, 3, 4]
        assert [len(note["ids"]) for note in notes] == list(jobs.shard_rows)
        assert np.allclose(tensors["sum"].numpy(), few["x"].sum(0), rtol=1e-12)

    def test_errors_name_shard_round_and_task(self, jobs):
        for kind, raised in ((LookupError, WorkerFailed), (InvalidInput, InvalidInput)):
            with pytest.raises(raised, match=r"shard 1 in round 4: .*no such thing") as caught:
                jobs.run(Raises(kind=kind), {"factor": 1.0}, number=4)
            assert (caught.value.rank, caught.value.stage, caught.value.step) == (1, "map", 4)
        for all_rows in (True, False):  # a failed task does not end the others
            first, failed, last = jobs.each(Raises(kind=InvalidInput), [0, 1, 2], all_rows=all_rows)
            assert (first.trouble, last.trouble) == (None, None)
            with pytest.raises(InvalidInput, match="member 1: no such thing"):
                raise failed.error("member 1")
        jobs.run(Sums(), {"factor": 1.0})

    def test_tasks_get_all_rows_or_those_of_their_shard_in_order_of_ids(self, jobs):
        results = list(jobs.each(Whole(), [4, 0, 7], all_rows=True))
        assert [(result.index, result.trouble, result.note["given"]) for result in results] == [
            (index, None, index) for index in (4, 0, 7)
        ]
        for result in results:
            assert result.note["ids"] == list(range(ROWS))
            assert (result.note["index"], result.note["count"], result.note["shards"]) == (0, 1, [ROWS])
            assert np.allclose(result.tensors["sum"].numpy(), ARRAYS["x"].sum(0), rtol=1e-12)
        _, notes = jobs.run(Sums(), {"factor": 1.0})
        indices = [index for index, rows in enumerate(jobs.shard_rows) if rows][::-1]
        results = list(jobs.each(Whole(), indices, all_rows=False))
        assert [(result.index, result.note["index"], result.note["given"]) for result in results] == [
            (index,) * 3 for index in indices
        ]
        assert [result.note["ids"] for result in results] == [notes[index]["ids"] for index in indices]
        assert list(jobs.each(Whole(), [], all_rows=True)) == []

    def test_bad_and_missing_rows_raise(self, cluster):
        nan = {**ARRAYS, "x": np.where(ARRAYS["id"][:, None] == 50, np.nan, ARRAYS["x"])}
        none = {name: array[:0] for name, array in ARRAYS.items()}
        for arrays, message in ((nan, "NaN"), (none, "no rows")):
            data = self.make_data(arrays)
            with pytest.raises(InvalidInput, match=message), cluster.map_reduce(data, COLUMNS, num_shards=2):
                pass

    @pytest.mark.parametrize("shuffle", [True, False], ids=["one shard has both rows", "each shard has one"])
    def test_repeated_id_raises(self, cluster, shuffle):
        data = self.make_data({**ARRAYS, "id": np.where(ARRAYS["id"] == 50, 3, ARRAYS["id"])})

        def run() -> None:
            with cluster.map_reduce(data, COLUMNS, num_shards=2, shuffle=shuffle) as jobs:
                raise next(jobs.each(Whole(), [0, 1], all_rows=True)).error("member 0")

        with pytest.raises(InvalidInput, match=r"column 'id' .*3.*unique"):
            run()

    def test_rows_of_one_client_stay_together(self, cluster):
        columns = Columns((InputColumn("x"),), row_id=InputColumn("id", "int64"), client=InputColumn("client", "int64"))
        with cluster.map_reduce(self.make_data(ARRAYS), columns, num_shards=3) as jobs:
            assert sum(jobs.shard_rows) == ROWS
            _, notes = jobs.run(Clients(), {})
        assert sorted(client for clients in notes for client in clients) == list(range(7))


class ReductionContract(MapReduceContract):
    """Further guarantees of clusters whose executors may reduce results."""

    @pytest.fixture
    def on_executors(self, monkeypatch):
        """Calls a function such that executors reduce all results."""
        return lambda: monkeypatch.setattr("sparkdl.spark.task_runner._DIRECT", 0)

    @pytest.mark.slow
    def test_reduction_on_executors_is_bit_identical(self, jobs, on_executors):
        state = {"factor": 1.5}
        expected, notes = jobs.run(Sums(large=2_000_000), state)
        on_executors()
        actual, others = jobs.run(Sums(large=2_000_000), state)
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
        assert others == notes
        widened, _ = jobs.run(Widens(), state)
        assert torch.equal(widened["half"], torch.full((5,), 0.75))
        self.test_results_keep_their_dtype_shape_and_order(jobs)
        with pytest.raises(WorkerFailed, match="shard 1 in round 3"):
            jobs.run(Raises(), state, number=3)


class LossContract:
    """Further guarantees of clusters of several processes."""

    make_data = MapReduceContract.make_data
    tries = 4  # how often the cluster maps a shard

    @pytest.mark.chaos
    def test_only_work_of_a_dead_process_runs_again(self, cluster, tmp_path):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, num_shards=4) as jobs:
            for name in ("round", "all rows", "own rows"):
                marks = tmp_path / name
                marks.mkdir()
                works = DiesAt(marks=str(marks), index=2), Whole()
                if name == "round":
                    actual, expected = [[jobs.run(work, {"factor": 1.0})[0]["sum"]] for work in works]
                else:
                    runs = [jobs.each(work, [0, 1, 2, 3], all_rows=name == "all rows") for work in works]
                    actual, expected = [[result.tensors["sum"] for result in run] for run in runs]
                assert all(map(torch.equal, actual, expected))
                again = sorted(mark.name for mark in marks.iterdir() if not mark.name.endswith("-0"))
                assert again == ["2-1"]

    @pytest.mark.chaos
    @pytest.mark.parametrize("rounds", [True, False])
    def test_work_that_kills_every_process_is_given_up(self, cluster, tmp_path, rounds):
        work = DiesAt(marks=str(tmp_path), index=1, times=100)
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, num_shards=2) as jobs:
            if rounds:
                with pytest.raises(WorkerLost, match="round 7"):
                    jobs.run(work, {"factor": 1.0}, number=7)
            else:
                with pytest.raises(WorkerLost):
                    list(jobs.each(work, [0, 1], all_rows=True))
        assert len(list(tmp_path.glob("1-*"))) == self.tries
