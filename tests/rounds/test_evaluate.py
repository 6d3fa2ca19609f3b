"""Evaluation of a part: the rows it sees, in which order, and what they weigh."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import dealt
from sparkdl.data.batch import Ragged
from sparkdl.data.batching import Batcher, row_bytes
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.rounds.evaluate import ROWS, as_only_shard, batches, evaluate, mass_of
from sparkdl.training.objective import Objective

RANDOM = np.random.default_rng(5)


def part(columns: Columns, *, mixed: bool, rows: int = 50) -> Shard:
    """A part whose rows lie in the order of their ids, or mixed."""
    ids = RANDOM.permutation(rows) if mixed else np.arange(rows)
    arrays = {
        "x": ids[:, None] * 10.0 + np.arange(3),
        "words": [[int(each)] * (each % 3) for each in ids],
        "small": ids.astype(np.int16),
        "y": ids * 1.0,
        "z": ids * 2.0,
        "class": (ids % 3).astype(np.int64),
        "w": (ids % 4) / 2.0,
        "id": ids,
    }
    table = pa.table({column.name: pa.array([*arrays[column.name]]) for column in columns})
    return dealt(table, columns, 1)[0]


ID = InputColumn("id", "int64")
KINDS = {
    "one target": Columns((InputColumn("x"),), InputColumn("y"), row_id=ID),
    "two targets": Columns(
        (InputColumn("x"), InputColumn("small", "int16")), (InputColumn("y"), InputColumn("z")), row_id=ID
    ),
    "no target": Columns((InputColumn("x"),), row_id=ID),
    "weights": Columns((InputColumn("x"),), InputColumn("y"), weight=InputColumn("w"), row_id=ID),
    "ragged": Columns((InputColumn("words", "int64", ragged="offsets"),), InputColumn("y"), row_id=ID),
}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_feed(kind, mixed):
    """The same as the feed makes them in a thread of its own, without shuffling."""
    own = as_only_shard(part(KINDS[kind], mixed=mixed), Objective(partial(nn.Linear, 3, 1), nn.MSELoss()).criterion())
    expected = [batch for batch in Batcher(own, Plan((50,), 8, shuffle=False)).batches(0) if batch.weight]
    found = [*batches(own, 8)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.rows, one.weight, one.micro_fraction, one.total) == (other.rows, other.weight, 1.0, other.total)
        for name in ("target", "weights", "denominators"):
            assert_same(getattr(one, name), getattr(other, name))
        for each, same in zip(one.inputs, other.inputs, strict=True):
            assert_same(each, same)


def assert_same(one, other) -> None:
    if isinstance(one, Ragged):
        assert_same(one.values, other.values)
        one, other = one.bounds, other.bounds
    assert (one is None) == (other is None)
    assert one is None or (one.dtype == other.dtype and torch.equal(one, other))


def test_rows_that_lie_in_order_are_not_copied():
    own = part(KINDS["one target"], mixed=False)
    first = own.tensors["x"].data_ptr()
    assert next(batches(own, 8)).inputs[0].data_ptr() == first
    middle = own.subset(torch.arange(20, 40), (20,))
    assert next(batches(middle, 8)).inputs[0].data_ptr() == first + 20 * 3 * own.tensors["x"].itemsize


def test_the_sum_the_mass_and_the_gradient():
    columns = KINDS["weights"]
    objective = Objective(partial(nn.Linear, 3, 1), nn.MSELoss(), precision="fp64")
    columns = Columns(columns.inputs, columns.target, weight=columns.weight, row_id=ID, floating="float64")
    own = part(columns, mixed=True)
    module = objective.build()
    total, mass = evaluate(objective, module, own)
    ids = torch.arange(50, dtype=torch.float64)
    w = ids % 4 / 2
    same = objective.build()
    same.load_state_dict(module.state_dict())
    loss = ((same(ids[:, None] * 10 + torch.arange(3)).squeeze(-1) - ids).square() * w).sum()
    loss.backward()
    assert float(total) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float(mass) == pytest.approx(float(w.sum()))
    assert torch.allclose(module.weight.grad, same.weight.grad, rtol=1e-12)


def test_a_few_of_the_rows_weigh_what_they_weigh():
    own = as_only_shard(
        part(KINDS["weights"], mixed=True), Objective(partial(nn.Linear, 3, 1), nn.MSELoss()).criterion()
    )
    assert mass_of(own) == pytest.approx(sum(i % 4 / 2 for i in range(50)))
    assert mass_of(own.subset(torch.tensor([1, 2, 3]), (3,))) == pytest.approx(0.5 + 1.0 + 1.5)
    assert mass_of(own.subset(torch.tensor([], dtype=torch.int64), (0,))) == 0.0


def test_dropout_is_off_and_statistics_stay():
    """Otherwise it is another function at every evaluation."""
    objective = Objective(_noisy, nn.MSELoss())
    own = part(KINDS["one target"], mixed=False)
    module = objective.build()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    one, other = evaluate(objective, module, own)[0], evaluate(objective, module, own)[0]
    assert torch.equal(one, other)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def _noisy() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))


def test_many_rows_are_seen_in_pieces():
    rows = ROWS + 3
    own = part(KINDS["one target"], mixed=False, rows=rows)
    assert [batch.rows for batch in batches(own)] == [ROWS, 3]


def test_wide_rows_are_seen_fewer_at_a_time():
    """8 192 images of 224 x 224 would be 5 GB, and what the model computes of them many times that."""
    own = part(KINDS["one target"], mixed=False)
    row = row_bytes(own)
    assert row == 3 * own.tensors["x"].itemsize + own.tensors["y"].itemsize
    wide = replace(own, tensors={**own.tensors, "x": torch.zeros(50, 1 << 20)})
    sizes = [batch.rows for batch in batches(wide)]
    assert sum(sizes) == 50
    assert max(sizes) * (4 << 20) <= 32 << 20
