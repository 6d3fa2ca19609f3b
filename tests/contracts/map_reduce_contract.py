"""What every cluster promises of rounds. A concrete test class has a fixture ``cluster``, and ``make_data``."""

from __future__ import annotations

import os
import signal
import uuid
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
    """Sums the rows of a part, times a factor in the state; the note tells of the part."""

    large: int = 0

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """The part's sums."""
        x, ids = numbers(part.tensors, "x"), numbers(part.tensors, "id")
        order = torch.arange(part.rows) if part.order is None else part.order.long()
        note = {"index": part.index, "count": part.count, "parts": list(part.parts), "ids": ids[order].tolist()}
        found = {"sum": x[order].sum(0) * state["factor"], "rows": torch.tensor(part.rows)}
        if self.large:
            found["large"] = torch.full((self.large, 3), float(part.index + 1))
        return found, note

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """Sums."""
        return {name: tensor + other[name] for name, tensor in one.items()}


@dataclass(frozen=True)
class Kinds(Sums):
    """Tensors of other kinds than float32: halves, numbers without dimensions, none at all, one under two names."""

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """The same for every part."""
        once = torch.ones(3, dtype=torch.int64)
        found = {"z": torch.full((2, 2), 0.5, dtype=torch.float16), "none": torch.empty(0, 3, dtype=torch.bfloat16)}
        return {**found, "one": once, "same": once, "a": torch.tensor(1.0, dtype=torch.float64)}, None


@dataclass(frozen=True)
class Marked(Sums):
    """Leaves a file for each time that a part was mapped.

    Attributes:
        marks: a folder.
    """

    marks: str = ""

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """Leave a mark, and map."""
        Path(self.marks, f"{part.index}-{uuid.uuid4().hex}").touch()
        return super().map(state, part)


@dataclass(frozen=True)
class Clients(Sums):
    """The note is whose rows a part has."""

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """The part's clients."""
        return {}, numbers(part.tensors, "client").unique().tolist()


@dataclass(frozen=True)
class Raises(Sums):
    """Raises on part 1."""

    kind: type[Exception] = LookupError

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """Raise, or map."""
        if part.index == 1:
            raise self.kind("no such thing")
        return super().map(state, part)


@dataclass(frozen=True)
class Whole(Sums):
    """Sums, of a task that is given its index in place of a state."""

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """The part's sums."""
        found, note = super().map({"factor": 1.0}, part)
        return found, note | {"given": state}


@dataclass(frozen=True)
class RaisesAt(Whole):
    """Raises in one task.

    Attributes:
        index: of the task.
    """

    index: int = 0

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """Raise, or map."""
        if state == self.index:
            raise InvalidInput("no such thing")
        return super().map(state, part)


@dataclass(frozen=True)
class DiesAt(Whole):
    """Kills its process in one task, and leaves a file for each time that any began.

    Attributes:
        marks: a folder.
        index: of the task.
        times: how often it does.
    """

    marks: str = ""
    index: int = 0
    times: int = 1

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """Die, or map."""
        before = len(list(Path(self.marks).glob(f"{state}-*")))
        Path(self.marks, f"{state}-{before}").touch()
        if state == self.index and before < self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().map(state, part)


@dataclass(frozen=True)
class Dies(Sums):
    """Kills its process on part 1, as long as there are marks to be made.

    Attributes:
        marks: a folder.
        times: how often.
    """

    marks: str = ""
    times: int = 1

    def map(self, state: Any, part: Shard) -> tuple[Tensors, Any]:
        """Die, or map."""
        if part.index == 1 and len(os.listdir(self.marks)) < self.times:
            Path(self.marks, str(len(os.listdir(self.marks)))).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().map(state, part)


class MapReduceContract:
    """Every test packs the data once."""

    def make_data(self, arrays: dict[str, np.ndarray]) -> Any:
        """Arrays ``[rows, ...]`` as the cluster takes them."""
        return arrays

    @pytest.fixture
    def jobs(self, cluster):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, parts=3) as found:
            yield found

    def test_every_row_is_in_one_part_in_the_order_of_its_id(self, jobs):
        _, notes = jobs.run(Sums(), {"factor": 1.0})
        assert [note["index"] for note in notes] == [0, 1, 2]
        assert {tuple(note["parts"]) for note in notes} == {jobs.parts}
        assert [len(note["ids"]) for note in notes] == list(jobs.parts)
        assert sorted(row for note in notes for row in note["ids"]) == list(range(ROWS))
        if len(jobs.parts) == 3:
            assert all(note["ids"] == sorted(note["ids"]) for note in notes)

    def test_rounds_give_sums_and_the_same_bits_again(self, jobs):
        one, _ = jobs.run(Sums(), {"factor": 2.0}, number=1)
        other, _ = jobs.run(Sums(), {"factor": 2.0}, number=2)
        assert torch.equal(one["sum"], other["sum"])
        assert np.allclose(one["sum"].numpy(), 2 * ARRAYS["x"].sum(0), rtol=1e-12)
        assert int(one["rows"]) == ROWS

    def test_large_states_and_results(self, jobs):
        state = {"factor": 1.0, "padding": torch.zeros(300_000)}
        found, _ = jobs.run(Sums(large=400_000), state)
        assert found["large"].shape == (400_000, 3)
        assert bool((found["large"] == 6).all())
        plain, _ = jobs.run(Sums(), {"factor": 1.0})
        assert torch.equal(found["sum"], plain["sum"])

    def test_results_of_any_kind_keep_their_kind_and_order(self, jobs):
        found, notes = jobs.run(Kinds(), {})
        assert list(found) == ["z", "none", "one", "same", "a"]
        assert notes == [None] * len(jobs.parts)
        three = float(len(jobs.parts))
        assert torch.equal(found["z"], torch.full((2, 2), 0.5 * three, dtype=torch.float16))
        assert (found["none"].shape, found["none"].dtype) == ((0, 3), torch.bfloat16)
        assert torch.equal(found["one"], found["same"])
        assert (found["one"].tolist(), found["one"].dtype) == ([three] * 3, torch.int64)
        assert (found["a"].item(), found["a"].dtype, found["a"].shape) == (three, torch.float64, ())

    def test_parts_without_rows_are_mapped_as_well(self, cluster):
        few = {name: array[:3] for name, array in ARRAYS.items()}
        with cluster.map_reduce(self.make_data(few), COLUMNS, parts=5) as jobs:
            found, notes = jobs.run(Sums(), {"factor": 1.0})
        assert (len(jobs.parts), sum(jobs.parts)) == (5, 3)
        assert 0 in jobs.parts
        assert [note["index"] for note in notes] == [0, 1, 2, 3, 4]
        assert [len(note["ids"]) for note in notes] == list(jobs.parts)
        assert np.allclose(found["sum"].numpy(), few["x"].sum(0), rtol=1e-12)

    @pytest.mark.parametrize(("kind", "raised"), [(LookupError, WorkerFailed), (InvalidInput, InvalidInput)])
    def test_an_error_is_named_with_its_part(self, jobs, kind, raised):
        with pytest.raises(raised, match=r"shard 1 in round 4: .*no such thing") as caught:
            jobs.run(Raises(kind=kind), {"factor": 1.0}, number=4)
        assert (caught.value.rank, caught.value.stage, caught.value.step) == (1, "map", 4)
        jobs.run(Sums(), {"factor": 1.0})

    def test_each_task_has_all_rows_in_the_order_of_their_ids(self, jobs):
        found = list(jobs.each(Whole(), [4, 0, 7], all_rows=True))
        assert [each.index for each in found] == [4, 0, 7]
        assert all(each.trouble is None for each in found)
        assert [each.note["given"] for each in found] == [4, 0, 7]
        for each in found:
            assert each.note["ids"] == list(range(ROWS))
            assert (each.note["index"], each.note["count"], each.note["parts"]) == (0, 1, [ROWS])
            assert np.allclose(each.tensors["sum"].numpy(), ARRAYS["x"].sum(0), rtol=1e-12)

    def test_each_task_has_the_rows_of_its_part(self, jobs):
        _, notes = jobs.run(Sums(), {"factor": 1.0})
        wanted = [index for index, rows in enumerate(jobs.parts) if rows][::-1]
        found = list(jobs.each(Whole(), wanted, all_rows=False))
        assert [each.index for each in found] == wanted
        for each in found:
            assert (each.note["index"], each.note["given"]) == (each.index, each.index)
            assert each.note["ids"] == notes[each.index]["ids"]

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_task_that_fails_does_not_keep_the_others_from_running(self, jobs, whole):
        one, other, last = jobs.each(RaisesAt(index=1), [0, 1, 2], all_rows=whole)
        assert (one.trouble, last.trouble) == (None, None)
        with pytest.raises(InvalidInput, match="member 1: no such thing"):
            raise other.error("member 1")
        assert list(jobs.each(Whole(), [], all_rows=whole)) == []

    def test_rows_that_cannot_be_used_are_refused(self, cluster):
        arrays = {**ARRAYS, "x": np.where(ARRAYS["id"][:, None] == 50, np.nan, ARRAYS["x"])}
        with pytest.raises(InvalidInput, match="NaN"), cluster.map_reduce(self.make_data(arrays), COLUMNS, parts=2):
            pass

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_an_id_that_two_rows_have_is_refused_by_name(self, cluster, shuffle):
        """Whether one part has both rows or two parts have one each."""
        arrays = {**ARRAYS, "id": np.where(ARRAYS["id"] == 50, 3, ARRAYS["id"])}

        def run() -> None:
            with cluster.map_reduce(self.make_data(arrays), COLUMNS, parts=2, shuffle=shuffle) as jobs:
                raise next(jobs.each(Whole(), [0, 1], all_rows=True)).error("member 0")

        with pytest.raises(InvalidInput, match=r"column 'id' .*3.*unique"):
            run()

    def test_a_clients_rows_come_together(self, cluster):
        columns = Columns((InputColumn("x"),), row_id=InputColumn("id", "int64"), client=InputColumn("client", "int64"))
        with cluster.map_reduce(self.make_data(ARRAYS), columns, parts=3) as jobs:
            assert sum(jobs.parts) == ROWS
            _, notes = jobs.run(Clients(), {})
        assert sorted(client for found in notes for client in found) == list(range(7))

    def test_no_rows(self, cluster):
        arrays = {name: array[:0] for name, array in ARRAYS.items()}
        with pytest.raises(InvalidInput, match="no rows"), cluster.map_reduce(self.make_data(arrays), COLUMNS, parts=2):
            pass


class LossContract:
    """What clusters of several processes promise besides."""

    make_data = MapReduceContract.make_data
    tries = 4  # how often the cluster lets a part be mapped

    @pytest.mark.chaos
    def test_a_part_whose_process_died_is_mapped_again(self, cluster, tmp_path):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, parts=4) as jobs:
            quiet, _ = jobs.run(Sums(), {"factor": 1.0})
            found, _ = jobs.run(Dies(marks=str(tmp_path)), {"factor": 1.0})
            assert torch.equal(found["sum"], quiet["sum"])
            assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.chaos
    def test_a_part_that_kills_whoever_maps_it_is_given_up(self, cluster, tmp_path):
        with (
            cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, parts=2) as jobs,
            pytest.raises(WorkerLost, match="round 7"),
        ):
            jobs.run(Dies(marks=str(tmp_path), times=100), {"factor": 1.0}, number=7)
        assert len(list(tmp_path.iterdir())) == self.tries

    @pytest.mark.chaos
    @pytest.mark.parametrize("whole", [True, False])
    def test_a_task_whose_process_died_is_run_again_and_no_other(self, cluster, tmp_path, whole):
        with cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, parts=4) as jobs:
            found = list(jobs.each(DiesAt(marks=str(tmp_path), index=2), [0, 1, 2, 3], all_rows=whole))
            quiet = list(jobs.each(Whole(), [0, 1, 2, 3], all_rows=whole))
        assert [each.trouble for each in found] == [None] * 4
        assert all(
            torch.equal(one.tensors["sum"], other.tensors["sum"]) for one, other in zip(found, quiet, strict=True)
        )
        assert sorted(mark.name for mark in tmp_path.iterdir()) == ["0-0", "1-0", "2-0", "2-1", "3-0"]

    @pytest.mark.chaos
    def test_a_task_that_kills_whoever_runs_it_is_given_up(self, cluster, tmp_path):
        with (
            cluster.map_reduce(self.make_data(ARRAYS), COLUMNS, parts=2) as jobs,
            pytest.raises(WorkerLost),
        ):
            list(jobs.each(DiesAt(marks=str(tmp_path), index=1, times=100), [0, 1], all_rows=True))
        assert len(list(tmp_path.glob("1-*"))) == self.tries
