"""Evaluation of a shard: its batches in row-id order, their weights, the loss and its gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.cluster.local_tasks import ShardedData
from sparkdl.data.batch import Ragged
from sparkdl.data.batching import Batcher, row_bytes
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.rounds.evaluate import ROWS, as_only_shard, batches, evaluate
from sparkdl.training.objective.objective import Objective

ID = InputColumn("id", "int64")
PLAIN = Columns((InputColumn("x"),), InputColumn("y"), row_id=ID)
WEIGHED = replace(PLAIN, weight=InputColumn("w"))
KINDS = {
    "one target": PLAIN,
    "two targets": replace(
        PLAIN, inputs=(InputColumn("x"), InputColumn("small", "int16")), target=(InputColumn("y"), InputColumn("z"))
    ),
    "no target": Columns((InputColumn("x"),), row_id=ID),
    "weights": WEIGHED,
    "ragged": replace(PLAIN, inputs=(InputColumn("words", "int64", ragged="offsets"),)),
}
SQUARES = Objective(partial(nn.Linear, 3, 1), nn.MSELoss(), precision="fp64")


def shard(columns: Columns, *, mixed: bool, rows: int = 50) -> Shard:
    """A shard stored in the order of its ids, or mixed."""
    ids = np.random.default_rng(5).permutation(rows) if mixed else np.arange(rows)
    arrays = {
        "x": ids[:, None] * 10.0 + np.arange(3),
        "words": [[int(each)] * (each % 3) for each in ids],
        "small": ids.astype(np.int16),
        "y": ids * 1.0,
        "z": ids * 2.0,
        "w": (ids % 4) / 2.0,
        "id": ids,
    }
    table = pa.table({column.name: pa.array([*arrays[column.name]]) for column in columns})
    return ShardedData(table, columns, 1).shards()[0]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_those_of_unshuffled_batcher(kind, mixed):
    own = as_only_shard(shard(KINDS[kind], mixed=mixed), SQUARES.criterion())
    expected = [batch for batch in Batcher(own, Plan((50,), 8, shuffle=False)).batches(0) if batch.weight]
    for one, other in zip(batches(own, 8), expected, strict=True):
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


def test_contiguous_rows_are_not_copied():
    own = shard(PLAIN, mixed=False)
    x = own.tensors["x"]
    assert next(batches(own, 8)).inputs[0].data_ptr() == x.data_ptr()
    middle = own.subset(torch.arange(20, 40), (20,))
    assert next(batches(middle, 8)).inputs[0].data_ptr() == x.data_ptr() + 20 * 3 * x.itemsize


def test_sum_mass_and_gradient():
    own, module = shard(replace(WEIGHED, floating="float64"), mixed=True), SQUARES.build()
    total, denominator = evaluate(SQUARES, module, own)
    ids = torch.arange(50, dtype=torch.float64)
    same = SQUARES.build()
    same.load_state_dict(module.state_dict())
    loss = ((same(ids[:, None] * 10 + torch.arange(3)).squeeze(-1) - ids).square() * (ids % 4 / 2)).sum()
    loss.backward()
    assert float(total) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float(denominator) == pytest.approx(float((ids % 4 / 2).sum()))
    assert torch.allclose(module.weight.grad, same.weight.grad, rtol=1e-12)


@pytest.mark.parametrize("rows", [[*range(50)], [1, 2, 3], []])
def test_mass_of_subset(rows):
    own = as_only_shard(shard(WEIGHED, mixed=True), SQUARES.criterion())
    assert own.denominator() == pytest.approx(36.5)
    subset = own.subset(torch.tensor(rows, dtype=torch.int64), (len(rows),))
    assert subset.denominator() == pytest.approx(sum(row % 4 / 2 for row in rows))


def test_dropout_is_off_and_statistics_stay():
    layers = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))
    objective = Objective(lambda: layers, nn.MSELoss())
    own, module = shard(PLAIN, mixed=False), objective.build()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert torch.equal(evaluate(objective, module, own)[0], evaluate(objective, module, own)[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_batches_have_at_most_8192_rows_and_32_mib():
    """8192 images of 224 x 224 have 5 GB, and the model's activations many times as much."""
    assert [batch.rows for batch in batches(shard(PLAIN, mixed=False, rows=ROWS + 3))] == [ROWS, 3]
    own = shard(PLAIN, mixed=False)
    assert row_bytes(own) == 3 * own.tensors["x"].itemsize + own.tensors["y"].itemsize
    wide = replace(own, tensors={**own.tensors, "x": torch.zeros(50, 1 << 20)})
    sizes = [batch.rows for batch in batches(wide)]
    assert sum(sizes) == 50
    assert max(sizes) * (4 << 20) <= 32 << 20
