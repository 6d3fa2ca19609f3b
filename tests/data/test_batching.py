"""The batches of all members together: every row once an epoch, in an order that depends on nothing but the seed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.data import batching as module
from sparkdl.data import shard
from sparkdl.data.batch import Batch
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.sampler import Plan
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput
from sparkdl.training.loss import Criterion
from tests.data.spooled import cut, parts_of, shuffled

ID = InputColumn("id", "int64")
PLAIN = Columns((InputColumn("row"), InputColumn("x")), target=InputColumn("y"), row_id=ID)
WEIGHED = Columns((InputColumn("row"), InputColumn("x")), target=InputColumn("y"), weight=InputColumn("w"), row_id=ID)
SPLIT = Columns(
    (InputColumn("row"), InputColumn("x")), target=InputColumn("y"), validation=InputColumn("v", "bool"), row_id=ID
)

SIZES = [(997, 1, 0), (0, 0, 5), (1, 1, 1, 1), (3, 50, 0, 1, 200), (64,)]
BATCH_SIZES = [1, 7, 64, 5000]


def table(rows: int) -> pa.Table:
    draw = np.random.default_rng(rows)
    return pa.table(
        {
            "id": pa.array(np.arange(rows) * 3 - 100),
            "row": pa.array(np.arange(rows)),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(draw.standard_normal(rows * 2)), 2),
            "y": pa.array(draw.integers(0, 4, rows)),
            "w": pa.array(draw.choice([0.0, 0.25, 1.0, 3.5], rows)),
            "v": pa.array(draw.random(rows) < 0.3),
        }
    )


def parts(sizes: Sequence[int], columns: Columns = PLAIN, *, arrival: int | None = None) -> list[Shard]:
    tables = cut(table(sum(sizes)), sizes)
    return parts_of([each if arrival is None else shuffled(each, arrival) for each in tables], columns)


def weighed(members: list[Shard], criterion: Criterion | None = None) -> list[Shard]:
    """As a gang does it: where one member's rows have masses, those of all have."""
    made = [
        part.with_denominators((lambda target: None) if criterion is None else criterion.denominators)
        for part in members
    ]
    return [part if part.denominators is not None else part.with_unit_denominators() for part in made]


def totals(members: list[Shard], plan: Plan, epoch: int) -> list[float]:
    found: Tensor = sum((Batcher(part, plan).step_weights(epoch) for part in members), torch.zeros(plan.steps).double())
    return found.tolist()


def epoch_of(members: list[Shard], plan: Plan, epoch: int = 0, *, start: int = 0) -> list[list[Batch]]:
    """Each member's batches."""
    sums = None if members[0].denominators is None else totals(members, plan, epoch)
    return [list(Batcher(part, plan).batches(epoch, start=start, totals=sums)) for part in members]


def rows_of(batches: list[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.inputs[0].tolist()]


def assert_same(found: Batch, expected: Batch) -> None:
    for field in fields(Batch):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, Tensor):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        elif field.name == "inputs":
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        else:
            assert one == other


# ---- every row exactly once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_row_comes_once_an_epoch(sizes: tuple[int, ...], batch_size: int) -> None:
    members = parts(sizes)
    plan = Plan(sizes, batch_size, seed=3)
    for epoch in range(2):
        found = epoch_of(members, plan, epoch)
        assert sorted(row for batches in found for row in rows_of(batches)) == list(range(sum(sizes)))
        assert [len(batches) for batches in found] == [plan.steps] * len(sizes)
        for rank, batches in enumerate(found):
            assert [batch.rows for batch in batches] == [plan.count(rank, step) for step in range(plan.steps)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_belongs_to_a_row_stays_with_it(sizes: tuple[int, ...]) -> None:
    given = table(sum(sizes))
    x, y = torch.tensor(given["x"].to_pylist(), dtype=torch.float32), torch.tensor(given["y"].to_pylist())
    weights = torch.tensor(given["w"].to_pylist(), dtype=torch.float32)
    members = weighed(parts(sizes, WEIGHED, arrival=5))
    for batches in epoch_of(members, Plan(sizes, 16)):
        for batch in batches:
            chosen = batch.inputs[0]
            assert batch.target is not None
            assert batch.weights is not None
            assert batch.denominators is not None
            assert torch.equal(batch.inputs[1], x[chosen])
            assert torch.equal(batch.target, y[chosen])
            assert torch.equal(batch.weights, weights[chosen])
            assert torch.equal(batch.denominators, weights[chosen].double())


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shares_are_proportions_of_rows(sizes: tuple[int, ...], batch_size: int) -> None:
    for step in zip(*epoch_of(parts(sizes), Plan(sizes, batch_size)), strict=True):
        total = sum(batch.rows for batch in step)
        assert [batch.total for batch in step] == [total] * len(sizes)
        assert [batch.weight_fraction for batch in step] == [batch.rows / total for batch in step]
        assert sum(batch.weight_fraction for batch in step) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("batch_size", [7, 64, 5000])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shares_are_proportions_of_masses(sizes: tuple[int, ...], batch_size: int) -> None:
    classes = nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0, 0.0], dtype=torch.float64), ignore_index=2)
    members = weighed(parts(sizes, WEIGHED), Criterion(classes))
    for step in zip(*epoch_of(members, Plan(sizes, batch_size), epoch=1), strict=True):
        total = sum(batch.weight for batch in step)
        if total == 0:
            assert all(batch.weight_fraction == 0 for batch in step)
            continue
        assert sum(batch.weight_fraction for batch in step) == pytest.approx(1, abs=1e-12)
        for batch in step:
            assert batch.weights is not None
            assert batch.denominators is not None
            factor = torch.tensor([0.5, 1.0, 0.0, 0.0]).double()[batch.target]
            assert torch.equal(batch.denominators, batch.weights.double() * factor)
            assert batch.weight_fraction == pytest.approx(float(batch.denominators.sum()) / total, abs=1e-12)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_without_masses_weigh_1(sizes: tuple[int, ...]) -> None:
    plan = Plan(sizes, 7)
    for part in parts(sizes):
        expected = [plan.count(part.index, step) for step in range(plan.steps)]
        assert Batcher(part, plan).step_weights(0).tolist() == expected
        assert Batcher(part.with_unit_denominators(), plan).step_weights(0).tolist() == expected


def test_masses_of_one_are_left_out() -> None:
    criterion = Criterion(nn.CrossEntropyLoss(ignore_index=77))
    assert [part.with_denominators(criterion.denominators).denominators for part in parts((5, 0, 3))] == [None] * 3


@pytest.mark.parametrize("scan", [1, 3, 1000])
def test_masses_are_the_same_however_they_are_scanned(scan: int, monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = Criterion(nn.CrossEntropyLoss(ignore_index=1))
    expected = weighed(parts((20, 1, 0)), criterion)
    monkeypatch.setattr(shard, "_SCAN_ROWS", scan)
    monkeypatch.setattr(module, "_SCAN_ROWS", scan)
    for found, one in zip(weighed(parts((20, 1, 0)), criterion), expected, strict=True):
        assert found.denominators is not None
        assert one.denominators is not None
        assert torch.equal(found.denominators, one.denominators)


def test_a_negative_weight_is_refused() -> None:
    given = pa.table({"x": [1.0, 2.0], "w": [1.0, -0.5]})
    (part,) = parts_of([given], Columns((InputColumn("x"),), weight=InputColumn("w")))
    with pytest.raises(InvalidInput, match=r"weight column 'w' holds -0.5; expected weights of at least 0"):
        part.with_denominators(lambda target: None)


# ---- validation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_training_and_validation_rows_are_apart_and_complete(sizes: tuple[int, ...]) -> None:
    flags = table(sum(sizes))["v"].to_pylist()
    for arrival in (None, 4):
        members = parts(sizes, SPLIT, arrival=arrival)
        split = [part.split() for part in members]
        seen: dict[bool, list[int]] = {}
        for kept in (False, True):
            positions = [pair[kept] for pair in split]
            counts = tuple(len(each) for each in positions)
            subsets = [part.subset(each, counts) for part, each in zip(members, positions, strict=True)]
            found = epoch_of(subsets, Plan(counts, 16, shuffle=not kept))
            seen[kept] = [row for batches in found for row in rows_of(batches)]
            assert all(flags[row] == kept for row in seen[kept])
        assert sorted(seen[False] + seen[True]) == list(range(sum(sizes)))
        assert seen[True] == sorted(seen[True])  # unshuffled: in the order of the ids


def test_masses_follow_their_rows_into_a_subset() -> None:
    columns = Columns((InputColumn("row"),), weight=InputColumn("w"), validation=InputColumn("v", "bool"), row_id=ID)
    (part,) = weighed(parts((60,), columns, arrival=2))
    training, _ = part.split()
    rows = (len(training),)
    weights = torch.tensor(table(60)["w"].to_pylist()).double()
    for batch in epoch_of([part.subset(training, rows)], Plan(rows, 8))[0]:
        assert batch.denominators is not None
        assert torch.equal(batch.denominators, weights[batch.inputs[0]])


def test_without_a_validation_column_there_is_nothing_to_split_by() -> None:
    with pytest.raises(InvalidInput, match="there is no validation column"):
        parts((3,))[0].split()


# ---- the order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_another_order_of_arrival_gives_the_same_bits(sizes: tuple[int, ...]) -> None:
    plan = Plan(sizes, 16, seed=1)
    expected = epoch_of(weighed(parts(sizes, WEIGHED)), plan)
    for arrival in range(3):
        for found, one in zip(epoch_of(weighed(parts(sizes, WEIGHED, arrival=arrival)), plan), expected, strict=True):
            for batch, other in zip(found, one, strict=True):
                assert_same(batch, other)


def test_the_order_changes_with_the_epoch_and_with_the_seed() -> None:
    members = parts((300, 40))
    orders = {
        tuple(rows_of(epoch_of(members, Plan((300, 40), 16, seed), epoch)[0])) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(orders) == 4


@pytest.mark.parametrize("gathered", [1, 2, 5, 64])
@pytest.mark.parametrize("sizes", [(997, 1, 0), (3, 50, 0, 1, 200)], ids=str)
def test_a_resumed_epoch_is_the_tail_of_the_whole_one(
    sizes: tuple[int, ...], gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHER_STEPS", gathered)
    members, plan = weighed(parts(sizes, WEIGHED)), Plan(sizes, 37)
    whole = epoch_of(members, plan, 2)
    for start in (0, 1, 3, plan.steps - 1, plan.steps, plan.steps + 4):
        for found, one in zip(epoch_of(members, plan, 2, start=start), whole, strict=True):
            for batch, other in zip(found, one[start:], strict=True):
                assert_same(batch, other)


# ---- dtypes and shapes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (pa.int16(), torch.int64),
        (pa.int32(), torch.int64),
        (pa.uint16(), torch.int64),
        (pa.uint32(), torch.int64),
        (pa.uint64(), torch.int64),
        (pa.int64(), torch.int64),
        (pa.uint8(), torch.uint8),
        (pa.int8(), torch.int8),
        (pa.bool_(), torch.bool),
        (pa.float64(), torch.float32),
    ],
    ids=str,
)
def test_dtypes_in_which_columns_arrive(kind: pa.DataType, dtype: torch.dtype) -> None:
    given = pa.table({"x": pa.array([0, 1, 1, 0, 1]).cast(kind)})
    (batches,) = epoch_of(
        parts_of([given], Columns((InputColumn("x"),), target=InputColumn("x"))), Plan((5,), 2, shuffle=False)
    )
    assert {batch.inputs[0].dtype for batch in batches} == {dtype}
    assert torch.cat([batch.inputs[0] for batch in batches]).tolist() == [0, 1, 1, 0, 1]
    assert all(torch.equal(batch.inputs[0], batch.target) for batch in batches)


def test_an_empty_batch_has_the_shapes_of_a_full_one() -> None:
    for batches in epoch_of(weighed(parts((5, 0), WEIGHED)), Plan((5, 0), 2)):
        for batch in batches:
            assert batch.inputs[1].shape == (batch.rows, 2)
            assert batch.target is not None
            assert batch.target.shape == (batch.rows,)


# ---- the thread ------------------------------------------------------------------------------------------------------


def feeding() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "sparkdl-prefetch"]


def test_an_abandoned_epoch_leaves_no_thread() -> None:
    (part,) = parts((997,))
    for taken in (1, 5):
        batches = Batcher(part, Plan((997,), 1)).batches(0)
        for _ in range(taken):
            next(batches)
        assert len(feeding()) == 1
        batches.close()  # type: ignore[attr-defined]
        assert feeding() == []
    batches = Batcher(part, Plan((997,), 1)).batches(0)
    next(batches)
    del batches
    assert feeding() == []


def test_a_finished_epoch_leaves_no_thread() -> None:
    assert len(list(Batcher(parts((30,))[0], Plan((30,), 7)).batches(0))) == 5
    assert feeding() == []


def test_another_plan_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"the plan is for parts of \(5, 1\) rows; expected \(5, 0\)"):
        Batcher(parts((5, 0))[0], Plan((5, 1), 2))
