"""Guarantees of every algorithm of rounds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.local_tasks import InlineTaskRunner, ShardedData
from sparkdl.cluster.tasks import TreeReducer
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.rounds import to_send
from sparkdl.rounds.loop import Round, Rounds
from sparkdl.training.objective.objective import Objective

ROWS = 90
COLUMNS = Columns(
    (InputColumn("x"),),
    InputColumn("y"),
    weight=InputColumn("w"),
    client=InputColumn("client", "int64"),
    floating="float64",
)
ROUNDS = 5


def data() -> dict[str, np.ndarray]:
    """A regression with weights, of nine clients."""
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0] + 0.3 + 0.1 * random.normal(size=ROWS)
    return {"x": x, "y": y, "w": random.uniform(0.5, 2.0, ROWS), "client": np.arange(ROWS) % 9}


def objective() -> Objective:
    optimizer = partial(torch.optim.SGD, lr=0.05)
    return Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), optimizer, precision="fp64")


def jobs(num_shards: int) -> InlineTaskRunner:
    return InlineTaskRunner(ShardedData(data(), COLUMNS, num_shards))


def shards_of(*sizes: int) -> list[Shard]:
    """The first rows of the data, by sizes of shards."""
    table = pa.table({name: list(array) for name, array in data().items()})
    ends = np.cumsum(sizes).tolist()
    tables = [table.slice(end - size, size) for end, size in zip(ends, sizes, strict=True)]
    return ShardedData(tables, COLUMNS, len(sizes)).shards()


def states(algorithm: Any, shards: list[Shard], rounds: int, minimized: Objective | None = None) -> list[Any]:
    """The first state, and the state after each round, converged or not."""
    minimized = minimized or objective()
    history, memories = [algorithm.init(minimized, 3)], [None] * len(shards)
    for _ in range(rounds):
        tree = TreeReducer(algorithm.reduce)
        for index, shard in enumerate(shards):
            update, memories[index] = algorithm.map(minimized, to_send(algorithm, history[-1]), shard, memories[index])
            tree.push(update)
        history.append(algorithm.apply(history[-1], tree.result()))
    return history


class Failing(SimpleNamespace):
    """A task runner whose rounds fail in one shard, after a number of calls."""

    def run(self, work: Any, state: Any, *, number: int = 0) -> Any:
        if isinstance(work, Round):  # not a look at the shards
            self.calls -= 1
            if self.calls < 0:
                work = SimpleNamespace(map=partial(self.map, work), reduce=work.reduce)
        return self.inner.run(work, state, number=number)

    def map(self, work: Round, state: Any, shard: Shard) -> Any:
        if shard.index == self.shard:
            raise LookupError("a fault on purpose")
        return work.map(state, shard)


def failing(calls: int, shard: int) -> Failing:
    inner = jobs(3)
    return Failing(inner=inner, shard_rows=inner.shard_rows, calls=calls, shard=shard)


class AlgorithmContract:
    """A concrete class names the algorithm."""

    algorithm: Any

    @pytest.fixture(scope="class")
    @classmethod
    def undisturbed(cls, tmp_path_factory):
        """State and history of an undisturbed run."""
        return cls().rounds(tmp_path_factory.mktemp("undisturbed")).run(jobs(3))

    def rounds(self, folder: Path, *, kept: bool = False, rounds: int = ROUNDS, **options: Any) -> Rounds:
        checkpoints = Checkpoints(str(folder / "checkpoints"), run="a run") if kept else None
        memories = str(folder / "memories")
        options |= {"checkpoints": checkpoints, "memories": memories, "max_rounds": rounds}
        return Rounds(self.algorithm, objective(), seed=3, **options)

    def updates(self, state: Any, order: Sequence[int] = (0, 1, 2)) -> list[Any]:
        """The updates of three shards, mapped in an order."""
        shards = ShardedData(data(), COLUMNS, 3).shards()
        updates = {index: self.algorithm.map(objective(), state, shards[index], None)[0] for index in order}
        return [updates[index] for index in range(3)]

    def test_learns(self, tmp_path):
        state, history = self.rounds(tmp_path, rounds=20).run(jobs(3))
        assert [row["round"] for row in history] == list(range(1, len(history) + 1))
        weight = state["weights"]["weight"].flatten()
        assert torch.allclose(weight, torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64), atol=0.15)

    def test_run_is_deterministic_and_keeps_callers_random_numbers(self, tmp_path, undisturbed):
        torch.manual_seed(11)
        expected = torch.rand(3)
        torch.manual_seed(11)
        state, _ = self.rounds(tmp_path).run(jobs(3))
        assert torch.equal(torch.rand(3), expected)
        assert pack_state(state) == pack_state(undisturbed[0])

    def test_state_is_plain_and_broadcast_does_not_grow(self, undisturbed):
        packed = pack_state(undisturbed[0])
        assert pack_state(unpack_state(packed)) == packed
        objective().build().load_state_dict(undisturbed[0]["weights"])
        after = states(self.algorithm, shards_of(30, 30, 30), ROUNDS)
        vector = sum(tensor.nbytes for tensor in after[-1]["weights"].values())
        sizes = [len(pack_state(to_send(self.algorithm, state))) for state in after[2:]]
        assert max(sizes) - min(sizes) < vector

    def test_changes_no_argument(self, tmp_path):
        before, _ = self.rounds(tmp_path, rounds=2).run(jobs(2))
        packed = pack_state(before)
        for shard in ShardedData(data(), COLUMNS, 2).shards():
            update, memory = self.algorithm.map(objective(), before, shard, None)
            remembered = None if memory is None else pack_state(memory)
            self.algorithm.map(objective(), before, shard, copy.deepcopy(memory))
            assert remembered is None or pack_state(memory) == remembered
            self.algorithm.apply(before, self.algorithm.reduce(update, update))
            assert pack_state(before) == packed

    def test_reduction_is_associative_piecewise_and_in_order_of_shards(self, tmp_path):
        state, _ = self.rounds(tmp_path, rounds=2).run(jobs(3))
        updates, *reordered = [self.updates(state, order) for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))]
        for repeated in reordered:
            assert [*map(pack_state, repeated)] == [*map(pack_state, updates)]
        first, second, third = updates
        reduce = self.algorithm.reduce
        both, left = reduce(first, second), reduce(reduce(first, second), third)
        right = reduce(first, reduce(second, third))
        for name, tensor in left.items():
            assert torch.allclose(tensor, right[name], rtol=1e-6, atol=1e-12)
            pieces = [{name: update[name].reshape(-1)[:1]} for update in (first, second)]
            assert torch.equal(reduce(*pieces)[name], both[name].reshape(-1)[:1])

    def test_empty_shards_make_no_difference(self):
        one, other = (states(self.algorithm, shards_of(*sizes), 4)[-1] for sizes in ((45, 45), (45, 45, 0)))
        for name, tensor in one["weights"].items():
            assert torch.allclose(other["weights"][name], tensor, rtol=1e-9, atol=1e-12), name
        first, *_, last = states(self.algorithm, shards_of(0, 1, 0, 1, 1), 4)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in last["weights"].values())
        assert not torch.equal(last["weights"]["weight"], first["weights"]["weight"])

    def test_run_resumes_bit_identical_after_any_failure(self, tmp_path, undisturbed):
        """In every round two shards fail, and then the driver, as it begins the next round."""
        expected, history = undisturbed

        def run(calls: int, shard: int) -> Any:
            return self.rounds(tmp_path, kept=True).run(failing(calls, shard))

        for number in range(2 * ROUNDS):
            for shard in (1, 2):
                with pytest.raises(WorkerFailed, match=rf"shard {shard} in round \d: LookupError: a fault on purpose"):
                    run(0, shard)
            try:
                state, rows = run(1, 0)
                break
            except WorkerFailed:
                assert number <= len(history)
        assert pack_state(state) == pack_state(expected)
        assert [{**row, "seconds": 0} for row in rows] == [{**row, "seconds": 0} for row in history]
        again, same = self.rounds(tmp_path, kept=True).run(failing(0, 0))  # a finished run maps nothing
        assert pack_state(again) == pack_state(state)
        assert same == rows
        more, longer = self.rounds(tmp_path, kept=True, rounds=ROUNDS + 1).run(jobs(3))
        assert len(longer) >= len(history)
        assert set(more) == set(state)
        with pytest.raises(InvalidInput, match=r"90 rows in 3 shards, and the data has 90 rows in 2 shards"):
            self.rounds(tmp_path, kept=True, rounds=ROUNDS + 2).run(jobs(2))

    def test_run_without_time_runs_no_round(self, tmp_path):
        state, history = self.rounds(tmp_path, max_seconds=0.0).run(jobs(3))
        assert history == []
        assert "weights" in state
