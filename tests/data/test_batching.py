"""The batches of all workers: every row once an epoch, in an order that depends on the seed alone; prefetching."""

import itertools
import threading
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl.data import batching
from sparkdl.data import shard as shard_module
from sparkdl.data.batch import Batch, Ragged
from sparkdl.data.batching import Batcher
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.prefetch import prefetch
from sparkdl.data.sampler import Plan
from sparkdl.errors import InvalidInput
from sparkdl.training.objective.loss import Criterion
from tests.data.spooled import cut, shards_of, shuffled

ID = InputColumn("id", "int64")
INPUTS = (InputColumn("row"), InputColumn("x"))
PLAIN = Columns(INPUTS, InputColumn("y"), row_id=ID)
WEIGHTED = Columns(INPUTS, InputColumn("y"), weight=InputColumn("w"), validation=InputColumn("v", "bool"), row_id=ID)

each_sizes = pytest.mark.parametrize(
    "sizes", [(997, 1, 0), (0, 0, 5), (1, 1, 1, 1), (3, 50, 0, 1, 200), (64,)], ids=str
)


def table(rows):
    draw = np.random.default_rng(rows)
    tokens = [draw.integers(0, 99, draw.integers(0, 6)).tolist() for _ in range(rows)]
    return pa.table(
        {
            "id": pa.array(np.arange(rows) * 3 - 100),
            "row": pa.array(np.arange(rows)),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(draw.standard_normal(rows * 2)), 2),
            "y": pa.array(draw.integers(0, 4, rows)),
            "w": pa.array(draw.choice([0.0, 0.25, 1.0, 3.5], rows)),
            "v": pa.array(draw.random(rows) < 0.3),
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
        }
    )


def shards(sizes, columns=PLAIN, *, arrival=None):
    tables = cut(table(sum(sizes)), sizes)
    return shards_of([rows if arrival is None else shuffled(rows, arrival) for rows in tables], columns)


def weighted(dataset, criterion=None):
    """As a gang does it: if one shard has denominators, all have."""
    denominators = (lambda target: None) if criterion is None else criterion.denominators
    terms = [shard.with_denominators(denominators) for shard in dataset]
    return [shard if shard.denominators is not None else shard.with_unit_denominators() for shard in terms]


def epoch_of(dataset, plan, epoch=0, *, start=0):
    """Each worker's batches."""
    totals = None
    if dataset[0].denominators is not None:
        totals = sum(Batcher(shard, plan).step_weights(epoch) for shard in dataset).tolist()
    return [list(Batcher(shard, plan).batches(epoch, start=start, totals=totals)) for shard in dataset]


def rows_of(batches):
    return [row for batch in batches for row in batch.inputs[0].tolist()]


def assert_same(actual, expected):
    """Each worker gets bit-identical batches."""
    for one, two in zip(itertools.chain(*actual), itertools.chain(*expected), strict=True):
        for field in fields(Batch):
            pair = getattr(one, field.name), getattr(two, field.name)
            for a, b in zip(*pair, strict=True) if field.name == "inputs" else [pair]:
                assert torch.equal(a, b) and a.dtype == b.dtype if isinstance(b, Tensor) else a == b


@pytest.mark.parametrize("batch_size", [1, 7, 64, 5000])
@each_sizes
def test_every_row_comes_once_an_epoch_with_its_columns_and_weighs_1(sizes, batch_size):
    data = table(sum(sizes))
    x, y = torch.tensor(data["x"].to_pylist(), dtype=torch.float32), torch.tensor(data["y"].to_pylist())
    ones = Criterion(nn.CrossEntropyLoss(ignore_index=77)).denominators
    assert all(shard.with_denominators(ones).denominators is None for shard in shards(sizes))
    dataset, plan, orders = shards(sizes, arrival=5), Plan(sizes, batch_size, seed=3), set()
    for epoch in range(2):
        batches = epoch_of(dataset, plan, epoch)
        orders.add(tuple(rows_of(batches[0])))
        assert sorted(row for worker in batches for row in rows_of(worker)) == list(range(sum(sizes)))
        for rank, worker in enumerate(batches):
            assert [batch.rows for batch in worker] == [plan.count(rank, step) for step in range(plan.steps)]
            for shard in (dataset[rank], dataset[rank].with_unit_denominators()):
                assert Batcher(shard, plan).step_weights(epoch).tolist() == [batch.rows for batch in worker]
        for step in zip(*batches, strict=True):
            total = sum(batch.rows for batch in step)
            for batch in step:
                chosen = batch.inputs[0]
                assert torch.equal(batch.inputs[1], x[chosen].view(-1, 2))
                assert torch.equal(batch.target, y[chosen])
                assert (batch.total, batch.weight_fraction) == (total, batch.rows / total)
    assert len(orders) == 2 or sizes[0] < 9


@pytest.mark.parametrize("batch_size", [7, 64, 5000])
@each_sizes
def test_weight_fractions_are_proportional_to_denominators(sizes, batch_size):
    weights = torch.tensor(table(sum(sizes))["w"].to_pylist(), dtype=torch.float32)
    classes = nn.CrossEntropyLoss(torch.tensor([0.5, 1.0, 2.0, 0.0], dtype=torch.float64), ignore_index=2)
    for criterion, factors in ((None, torch.ones(4)), (Criterion(classes), torch.tensor([0.5, 1.0, 0.0, 0.0]))):
        dataset = weighted(shards(sizes, WEIGHTED, arrival=5), criterion)
        for step in zip(*epoch_of(dataset, Plan(sizes, batch_size), epoch=1), strict=True):
            total = sum(batch.weight for batch in step)
            assert sum(batch.weight_fraction for batch in step) == pytest.approx(float(total > 0), abs=1e-12)
            for batch in step:
                assert torch.equal(batch.weights, weights[batch.inputs[0]])
                assert torch.equal(batch.denominators, batch.weights.double() * factors.double()[batch.target])
                fraction = float(batch.denominators.sum()) / total if total else 0
                assert batch.weight_fraction == pytest.approx(fraction, abs=1e-12)


@pytest.mark.parametrize("scan", [1, 3, 1000])
def test_size_of_scans_does_not_matter(scan, monkeypatch):
    criterion = Criterion(nn.CrossEntropyLoss(ignore_index=1))
    expected = epoch_of(weighted(shards((20, 1, 0), arrival=1), criterion), Plan((20, 1, 0), 4))
    monkeypatch.setattr(shard_module, "_MOST", scan)
    monkeypatch.setattr(batching, "_SCAN_ROWS", scan)
    assert_same(epoch_of(weighted(shards((20, 1, 0), arrival=1), criterion), Plan((20, 1, 0), 4)), expected)


@each_sizes
def test_validation_split_is_disjoint_and_complete(sizes):
    data = table(sum(sizes))
    flags, weights = np.array(data["v"]), torch.tensor(data["w"].to_pylist()).double()
    for arrival in (None, 4):
        dataset = weighted(shards(sizes, WEIGHTED, arrival=arrival))
        read = {}
        for flag in (False, True):
            positions = [shard.split()[flag] for shard in dataset]
            counts = tuple(map(len, positions))
            subsets = [shard.subset(chosen, counts) for shard, chosen in zip(dataset, positions, strict=True)]
            batches = [*itertools.chain(*epoch_of(subsets, Plan(counts, 16, shuffle=not flag)))]
            read[flag] = rows_of(batches)
            assert (flags[read[flag]] == flag).all()
            assert all(torch.equal(batch.denominators, weights[batch.inputs[0]]) for batch in batches)
        assert sorted(read[False] + read[True]) == list(range(sum(sizes)))
        assert read[True] == sorted(read[True])  # unshuffled: in the order of the ids


@each_sizes
def test_order_of_arrival_does_not_matter(sizes):
    plan = Plan(sizes, 16, seed=1)
    expected = epoch_of(weighted(shards(sizes, WEIGHTED)), plan)
    for arrival in range(3):
        assert_same(epoch_of(weighted(shards(sizes, WEIGHTED, arrival=arrival)), plan), expected)


@pytest.mark.parametrize("gathered", [1, 2, 5, 64])
@pytest.mark.parametrize("sizes", [(997, 1, 0), (3, 50, 0, 1, 200)], ids=str)
def test_resumed_epoch_is_the_tail_of_the_whole_epoch(sizes, gathered, monkeypatch):
    monkeypatch.setattr(batching, "_GATHER_STEPS", gathered)
    dataset, plan = weighted(shards(sizes, WEIGHTED)), Plan(sizes, 37)
    expected = epoch_of(dataset, plan, 2)
    for start in (0, 1, 3, plan.steps - 1, plan.steps, plan.steps + 4):
        assert_same(epoch_of(dataset, plan, 2, start=start), [worker[start:] for worker in expected])


OTHERS = {pa.uint8(): torch.uint8, pa.int8(): torch.int8, pa.bool_(): torch.bool, pa.float64(): torch.float32}
WIDE = [pa.int16(), pa.int32(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int64()]


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.int64) for kind in WIDE), *OTHERS.items()], ids=str)
def test_dtypes_of_batches(kind, dtype):
    source = pa.table({"x": pa.array([0, 1, 1, 0, 1]).cast(kind)})
    dataset = shards_of([source], Columns((InputColumn("x"),), target=InputColumn("x")))
    (batches,) = epoch_of(dataset, Plan((5,), 2, shuffle=False))
    assert {batch.inputs[0].dtype for batch in batches} == {dtype}
    assert torch.cat([batch.inputs[0] for batch in batches]).tolist() == [0, 1, 1, 0, 1]
    assert all(torch.equal(batch.inputs[0], batch.target) for batch in batches)


def test_largest_shard_gathers_no_more_than_others(monkeypatch):
    monkeypatch.setattr(batching, "_GATHER_BYTES", 4000)
    sizes = (5000, *([1] * 99))
    batcher = Batcher(shards(sizes, Columns(INPUTS[:1]))[0], Plan(sizes, 100))
    assert max(rows.inputs[0].nbytes for *_, rows in batcher._chunks(0, 0, torch.device("cpu"))) <= 2 * 4000


def test_flags_of_arrays_of_length_1_split_rows():
    columns = Columns(INPUTS[1:], validation=InputColumn("v", "bool"))
    (shard,) = shards_of([pa.table({"x": [1, 2, 3], "v": [[False], [True], [False]]})], columns)
    assert [positions.tolist() for positions in shard.split()] == [[0, 2], [1]]
    with pytest.raises(InvalidInput, match=r"column 'v' has rows of shape \(2,\); expected \(\)"):
        shards_of([pa.table({"x": [1], "v": [[False, True]]})], columns)


@pytest.mark.parametrize("ragged", ["offsets", "padded"])
@pytest.mark.parametrize("sizes", [(64,), (50, 0, 13), (0, 2)], ids=str)
def test_ragged_rows_stay_with_their_rows(sizes, ragged):
    data = table(sum(sizes))
    columns = Columns((INPUTS[0], InputColumn("tokens", ragged=ragged)), row_id=ID)
    dataset = shards(sizes, columns, arrival=3)
    batches = [*itertools.chain(*epoch_of(dataset, Plan(sizes, 9, seed=1)))]
    assert sorted(rows_of(batches)) == list(range(sum(sizes)))
    for rows, tokens in (batch.inputs for batch in batches):
        assert isinstance(tokens, Ragged)
        assert tokens.padding == (None if ragged == "offsets" else 0)
        assert tokens.values.dtype == torch.int64
        ends = itertools.pairwise(tokens.bounds.tolist())
        assert [tokens.values[a:b].tolist() for a, b in ends] == [data["tokens"][row].as_py() for row in rows.tolist()]


def test_invalid_shards_and_plans_raise():
    rows = pa.table({"x": [1.0, 2.0], "w": [1.0, -0.5]})
    (negative,) = shards_of([rows], Columns(INPUTS[1:], weight=InputColumn("w")))
    first = shards((5, 0))[0]
    for call, message in [
        (lambda: negative.with_denominators(lambda target: None), r"weight column 'w' holds -0.5; expected weights of"),
        (first.split, "there is no validation column"),
        (lambda: Batcher(first, Plan((5, 1), 2)), r"the plan is for shards of \(5, 1\) rows; expected \(5, 0\)"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            call()


# ---- prefetching ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("end", [lambda batches: batches.close(), list, id], ids=["close", "finish", "delete"])
def test_batches_come_from_one_thread(end):
    before = threading.active_count()
    batches = Batcher(shards((997,))[0], Plan((997,), 1)).batches(0)
    next(batches)
    assert threading.active_count() == before + 1
    end(batches)


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("depth", [1, 2, 100])
def test_every_item_comes_in_order_from_another_thread(depth):
    for count in (0, 1, 2, 3, 1000):
        assert list(prefetch(range(count), depth=depth)) == list(range(count))
    items = prefetch((threading.current_thread().name for _ in range(5)), depth=depth)
    assert "sparkdl-prefetch" not in [thread.name for thread in threading.enumerate()]  # before the first request
    assert set(items) == {"sparkdl-prefetch"}
    first, second = prefetch(range(50), depth=depth), prefetch(range(100, 150), depth=depth)
    assert list(zip(first, second, strict=True)) == list(zip(range(50), range(100, 150), strict=True))


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_producer_is_at_most_the_queue_and_one_item_ahead(depth):
    produced, count = threading.Semaphore(0), 0

    def items():
        nonlocal count
        for item in itertools.count():
            count += 1
            produced.release()
            yield item

    stream = prefetch(items(), depth=depth)
    for taken in range(1, 5):
        assert next(stream) == taken - 1
        while count < taken + depth + 1:
            assert produced.acquire(timeout=20)
        assert count == taken + depth + 1
    stream.close()
    assert count == 4 + depth + 1


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("error", [OSError("the disk is gone"), SystemExit("the disk is gone")], ids=repr)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_error_comes_in_the_place_of_its_item(before, error):
    def items():
        yield from range(before)
        raise error

    stream = prefetch(items())
    assert [next(stream) for _ in range(before)] == list(range(before))
    with pytest.raises(type(error), match="the disk is gone") as caught:
        next(stream)
    assert "items" in [entry.name for entry in caught.traceback]
