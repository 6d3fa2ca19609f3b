"""What every algorithm of the rounds plane promises.

class TestThatAlgorithm(AlgorithmContract):
    algorithm = ThatAlgorithm(...)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.local_tasks import InlineTaskRunner, dealt
from sparkdl.cluster.tasks import Tensors, TreeReducer
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.rounds import to_send
from sparkdl.rounds.loop import Round, Rounds
from sparkdl.training.objective import Objective

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
    """Squared errors of a linear model, in fp64."""
    optimizer = partial(torch.optim.SGD, lr=0.05)
    return Objective(partial(nn.Linear, 4, 1), nn.MSELoss(), optimizer, precision="fp64")


def jobs(parts: int) -> InlineTaskRunner:
    """The data in so many parts."""
    return InlineTaskRunner(dealt(data(), COLUMNS, parts))


def parts_of(*sizes: int) -> list[Shard]:
    """The first rows of the data, in parts of these sizes."""
    table = pa.table({name: list(array) for name, array in data().items()})
    ends = np.cumsum(sizes).tolist()
    tables = [table.slice(end - size, size) for end, size in zip(ends, sizes, strict=True)]
    return dealt(tables, COLUMNS, len(sizes))


def states(algorithm: Any, parts: list[Shard], rounds: int, wanted: Objective | None = None) -> list[Any]:
    """The first state, and those after each of so many rounds; done or not."""
    wanted = wanted or objective()
    found, memories = [algorithm.init(wanted, 3)], [None] * len(parts)
    for _ in range(rounds):
        tree = TreeReducer(algorithm.reduce)
        for index, part in enumerate(parts):
            update, memories[index] = algorithm.map(wanted, to_send(algorithm, found[-1]), part, memories[index])
            tree.push(update)
        found.append(algorithm.apply(found[-1], tree.result()))
    return found


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history without what differs between runs."""
    return [{**row, "seconds": 0} for row in history]


@dataclass(frozen=True)
class Fails:
    """A round's work that fails on one part."""

    work: Round
    part: int

    def map(self, state: Any, part: Any) -> tuple[Tensors, Any]:
        """Fail, or map."""
        if part.index == self.part:
            raise LookupError("a fault on purpose")
        return self.work.map(state, part)

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """As without the fault."""
        return self.work.reduce(one, other)


class Failing:
    """Jobs of rounds, of which one part fails from some call on."""

    def __init__(self, inner: InlineTaskRunner, call: int, part: int) -> None:
        self.parts = inner.parts
        self._inner, self._left, self._part = inner, call, part

    def run(self, work: Any, state: Any, *, number: int = 0) -> Any:
        """The round, or the failure."""
        if not isinstance(work, Round):  # what the loop looks at besides
            return self._inner.run(work, state, number=number)
        self._left -= 1
        return self._inner.run(Fails(work, self._part) if self._left < 0 else work, state, number=number)


class AlgorithmContract:
    """A concrete class says which algorithm."""

    algorithm: Any

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory):
        """State and history of a run that nothing disturbs."""
        return cls().rounds(tmp_path_factory.mktemp("whole")).run(jobs(3))

    def rounds(self, folder: Path, *, kept: bool = False, rounds: int = ROUNDS, **options: Any) -> Rounds:
        """A run in a folder."""
        checkpoints = Checkpoints(str(folder / "checkpoints"), run="a run") if kept else None
        memories = str(folder / "memories")
        return Rounds(
            self.algorithm,
            objective(),
            seed=3,
            checkpoints=checkpoints,
            memories=memories,
            max_rounds=rounds,
            **options,
        )

    def test_it_learns(self, tmp_path):
        state, history = self.rounds(tmp_path, rounds=20).run(jobs(3))
        assert [row["round"] for row in history] == list(range(1, len(history) + 1))
        weight = state["weights"]["weight"].flatten()
        assert torch.allclose(weight, torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64), atol=0.15)

    def test_the_same_run_gives_the_same_bits(self, tmp_path, whole):
        state, _ = self.rounds(tmp_path).run(jobs(3))
        assert pack_state(state) == pack_state(whole[0])

    def test_what_is_sent_does_not_grow(self):
        """Whatever the driver remembers of former rounds stays there: it would be sent again and again."""
        after = states(self.algorithm, parts_of(30, 30, 30), ROUNDS)
        vector = sum(tensor.nbytes for tensor in after[-1]["weights"].values())
        sizes = [len(pack_state(to_send(self.algorithm, state))) for state in after[2:]]
        assert max(sizes) - min(sizes) < vector

    def test_parts_may_be_mapped_in_any_order(self, tmp_path):
        """Partial results are reduced in the parts' order, whatever the order in which they come."""
        state, _ = self.rounds(tmp_path, rounds=2).run(jobs(3))
        parts = dealt(data(), COLUMNS, 3)
        totals = []
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            found = {index: self.algorithm.map(objective(), state, parts[index], None)[0] for index in order}
            tree = TreeReducer(self.algorithm.reduce)
            for index in range(3):
                tree.push(found[index])
            totals.append(pack_state(tree.result()))
        assert len(set(totals)) == 1

    def test_its_state_is_plain_data(self, whole):
        state, _ = whole
        assert pack_state(unpack_state(pack_state(state))) == pack_state(state)
        fresh = objective().build()
        fresh.load_state_dict(state["weights"])

    def test_it_changes_nothing_it_is_given(self, tmp_path):
        before, _ = self.rounds(tmp_path, rounds=2).run(jobs(2))
        kept = pack_state(before)
        for part in dealt(data(), COLUMNS, 2):
            update, memory = self.algorithm.map(objective(), before, part, None)
            remembered = None if memory is None else pack_state(memory)
            self.algorithm.map(objective(), before, part, copy.deepcopy(memory))
            assert pack_state(before) == kept
            assert remembered is None or pack_state(memory) == remembered
            self.algorithm.apply(before, self.algorithm.reduce(update, update))
            assert pack_state(before) == kept

    def test_random_numbers_of_this_process_are_left_alone(self, tmp_path):
        torch.manual_seed(11)
        expected = torch.rand(3)
        torch.manual_seed(11)
        self.rounds(tmp_path, rounds=2).run(jobs(2))
        assert torch.equal(torch.rand(3), expected)

    def test_reducing_is_associative_and_piecewise(self, tmp_path):
        state, _ = self.rounds(tmp_path, rounds=2).run(jobs(3))
        found = [self.algorithm.map(objective(), state, part, None)[0] for part in dealt(data(), COLUMNS, 3)]
        left = self.algorithm.reduce(self.algorithm.reduce(found[0], found[1]), found[2])
        right = self.algorithm.reduce(found[0], self.algorithm.reduce(found[1], found[2]))
        for name, tensor in left.items():
            assert torch.allclose(tensor, right[name], rtol=1e-6, atol=1e-12)
            flat = [each[name].reshape(-1)[:1] for each in found[:2]]
            piece = self.algorithm.reduce({name: flat[0]}, {name: flat[1]})
            whole = self.algorithm.reduce(found[0], found[1])[name].reshape(-1)[:1]
            assert torch.equal(piece[name], whole)

    def test_an_empty_part_makes_no_difference(self):
        one, other = (states(self.algorithm, parts_of(*sizes), 4)[-1] for sizes in ((45, 45), (45, 45, 0)))
        for name, tensor in one["weights"].items():
            assert torch.allclose(other["weights"][name], tensor, rtol=1e-9, atol=1e-12), name

    def test_there_may_be_fewer_rows_than_parts(self):
        first, *_, last = states(self.algorithm, parts_of(0, 1, 0, 1, 1), 4)
        assert all(bool(torch.isfinite(each).all()) for each in last["weights"].values())
        assert not torch.equal(last["weights"]["weight"], first["weights"]["weight"])

    def test_a_run_that_fails_anywhere_goes_on_bit_equal(self, tmp_path, whole):
        """In every round each part fails, and then the driver, as it begins the next round."""
        expected, history = whole

        def run(call: int, part: int) -> Any:
            return self.rounds(tmp_path, kept=True).run(Failing(jobs(3), call, part))

        for number in range(2 * ROUNDS):
            for part in (1, 2):
                with pytest.raises(WorkerFailed, match=rf"shard {part} in round \d: LookupError: a fault on purpose"):
                    run(0, part)
            try:
                state, rows = run(1, 0)
                break
            except WorkerFailed:
                assert number <= len(history)
        assert pack_state(state) == pack_state(expected)
        assert timeless(rows) == timeless(history)

    def test_a_run_that_is_over_does_no_round_again(self, tmp_path, whole):
        state, history = self.rounds(tmp_path, kept=True).run(jobs(3))
        assert pack_state(state) == pack_state(whole[0])
        again, same = self.rounds(tmp_path, kept=True).run(Failing(jobs(3), 0, 0))
        assert pack_state(again) == pack_state(state)
        assert same == history
        more, longer = self.rounds(tmp_path, kept=True, rounds=ROUNDS + 1).run(jobs(3))
        assert len(longer) >= len(history)
        assert set(more) == set(state)

    def test_other_parts_are_refused(self, tmp_path):
        self.rounds(tmp_path, kept=True, rounds=1).run(jobs(3))
        with pytest.raises(InvalidInput, match=r"90 rows in 3 shards, and the data has 90 rows in 2 shards"):
            self.rounds(tmp_path, kept=True, rounds=2).run(jobs(2))

    def test_no_budget_is_no_round(self, tmp_path):
        state, history = self.rounds(tmp_path, max_seconds=0.0).run(jobs(3))
        assert history == []
        assert "weights" in state
