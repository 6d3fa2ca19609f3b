"""The plan of an epoch, compared with the order of all rows in exact fractions."""

import copy
import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch

from sparkdl.data.sampler import Plan, generator


def reference(rows, batch_size):
    """Rows of each shard in each step: every row's position, sorted, cut into batches."""
    order = sorted((Fraction(2 * j + 1, 2 * n), rank) for rank, n in enumerate(rows) for j in range(n))
    steps = [Counter(rank for _, rank in order[s : s + batch_size]) for s in range(0, len(order), batch_size)]
    return [tuple(step[rank] for rank in range(len(rows))) for step in steps]


def random_rows(draw, shards):
    return tuple(draw.choice((0, 1, 1, 2, draw.randint(0, 12), draw.randint(0, 90))) for _ in range(shards))


def counts(plan):
    offsets = [plan.offsets(step) for step in range(plan.steps + 1)]
    return [tuple(last - first for first, last in zip(*pair, strict=True)) for pair in itertools.pairwise(offsets)]


@pytest.mark.parametrize("seed", range(80))
def test_plan_equals_the_reference(seed):
    draw = random.Random(seed)
    rows = random_rows(draw, draw.randint(1, 20 if seed % 4 else 9))
    batch_size = draw.randint(1, max(2, sum(rows) + 3)) if seed % 2 else draw.randint(1, 12)
    plan, expected = Plan(rows, batch_size), reference(rows, batch_size)
    assert counts(plan) == expected
    assert plan.steps == len(expected)
    assert [plan.size(step) for step in range(plan.steps)] == list(map(sum, expected))
    for step in draw.sample(range(plan.steps), min(5, plan.steps)):
        assert tuple(plan.count(rank, step) for rank in range(len(rows))) == expected[step]


TIES = [(1,), (0, 1), (1,) * 4, (5, 5, 5), (3, 6, 9), (997, 1, 0), (1,) * 33, (0, 0, 7), (2, 4, 8, 16, 32)]
MANY = random_rows(random.Random(7), 100)


@pytest.mark.parametrize(("rows", "sizes"), [*[(rows, range(1, 40)) for rows in TIES], (MANY, (3, 7, 64, 1000, 9999))])
def test_plan_of_ties_and_of_many_shards_equals_the_reference(rows, sizes):
    for batch_size in sizes:
        assert counts(Plan(rows, batch_size)) == reference(rows, batch_size)


def test_plan_at_its_edges():
    plan = Plan((3, 0, 4), 1000)
    assert (plan.steps, plan.size(0), plan.offsets(1)) == (1, 7, (3, 0, 4))
    for rows in ((), (0,), (0, 0, 0)):
        assert (Plan(rows, 8).steps, Plan(rows, 8).offsets(0)) == (0, rows)
    plan = Plan((3, 4), 2)
    assert [plan.count(rank, plan.steps + 5) for rank in range(2)] == [0, 0]
    assert plan.size(plan.steps) == 0


BILLIONS = [
    (3_000_000_019, 1, 0, 2_999_999_999, 7),
    (10**12 + 39, 10**12 + 39, 10**12 + 38),
    (2**53 + 1, 2**53 - 1, 3),  # where doubles skip integers
    tuple(10**9 + 7 * rank for rank in range(100)),
]


@pytest.mark.parametrize("rows", BILLIONS, ids=lambda rows: f"{len(rows)} shards of {rows[0]}")
def test_billions_of_rows_stay_exact(rows):
    """The rows before a step are a prefix of the order: none of them comes after one of the others."""
    draw = random.Random(3)
    for batch_size in (1, 256, 65_537, 10**9 + 9):
        plan = Plan(rows, batch_size)
        for step in {0, 1, 2, plan.steps - 1, plan.steps, *(draw.randrange(plan.steps) for _ in range(20))}:
            offsets = plan.offsets(step)
            assert sum(offsets) == min(step * batch_size, sum(rows))
            assert all(0 <= taken <= n for taken, n in zip(offsets, rows, strict=True))
            pairs = list(enumerate(zip(offsets, rows, strict=True)))
            last = max(((Fraction(2 * t - 1, 2 * n), rank) for rank, (t, n) in pairs if t), default=(Fraction(-1), 0))
            coming = min(((Fraction(2 * t + 1, 2 * n), rank) for rank, (t, n) in pairs if t < n), default=(2, 0))
            assert last < coming


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_permutation_has_every_row_once(rows):
    rows_in_order = Plan((rows, 5), 4).permutation(0, 2)
    assert rows_in_order.dtype == torch.int32
    assert sorted(rows_in_order.tolist()) == list(range(rows))
    plan = Plan((rows, 3), 4, shuffle=False)
    assert plan.permutation(0, 0).tolist() == plan.permutation(0, 7).tolist() == list(range(rows))


def test_plan_and_permutation_depend_on_their_arguments_alone():
    plan = Plan((500, 500), 16, seed=9)
    expected = plan.permutation(1, 4)
    torch.manual_seed(0)
    noise = torch.rand(4)
    torch.manual_seed(0)
    for again in (Plan((500, 500), 16, seed=9), copy.deepcopy(plan)):
        assert (again, counts(again)) == (plan, counts(plan))
        assert torch.equal(again.permutation(1, 4), expected)
    assert torch.equal(Plan((3, 500, 77), 1, seed=9).permutation(1, 4), expected)
    assert torch.equal(torch.rand(4), noise)  # PyTorch's own generator is as it was


def test_no_two_keys_share_a_permutation_or_generator():
    seeds = (0, 1, 2, 5, -1, -2, 2**31, 2**32, 2**32 - 1, 2**32 + 1, 2**32 + 5, 5 << 32, 2**63, 2**64 - 3)
    keys = list(itertools.product(seeds, (*range(6), 2**32), range(6)))
    plans = {seed: Plan((200,) * 6, 16, seed=seed) for seed in seeds}
    assert len({plans[seed].permutation(rank, epoch).numpy().tobytes() for seed, epoch, rank in keys}) == len(keys)
    keys = [key for length in range(1, 4) for key in itertools.product((0, 1, 2**32, 2**32 + 1), repeat=length)]
    assert len({generator(*key).initial_seed() for key in keys}) == len(keys)
    assert torch.equal(torch.rand(9, generator=generator(1, 2, 3)), torch.rand(9, generator=generator(1, 2, 3)))
