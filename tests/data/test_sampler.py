"""The plan of an epoch against the order it stands for, written down row by row in exact fractions."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch

from sparkdl.data.sampler import Plan, generator
from sparkdl.errors import InvalidInput


def dealt(rows: tuple[int, ...], batch_size: int) -> list[tuple[int, ...]]:
    """Rows of each part in each step: every row's position, sorted, cut into batches."""
    order = sorted((Fraction(2 * j + 1, 2 * n), rank) for rank, n in enumerate(rows) for j in range(n))
    steps = [Counter(rank for _, rank in order[s : s + batch_size]) for s in range(0, len(order), batch_size)]
    return [tuple(step[rank] for rank in range(len(rows))) for step in steps]


def random_rows(draw: random.Random, parts: int) -> tuple[int, ...]:
    return tuple(draw.choice((0, 1, 1, 2, draw.randint(0, 12), draw.randint(0, 90))) for _ in range(parts))


def counts(plan: Plan) -> list[tuple[int, ...]]:
    offsets = [plan.offsets(step) for step in range(plan.steps + 1)]
    return [tuple(last - first for first, last in zip(*pair, strict=True)) for pair in itertools.pairwise(offsets)]


@pytest.mark.parametrize("seed", range(60))
def test_the_plan_is_the_merge_of_all_positions(seed: int) -> None:
    draw = random.Random(seed)
    rows = random_rows(draw, draw.randint(1, 9))
    batch_size = draw.randint(1, max(2, sum(rows) + 3)) if seed % 2 else draw.randint(1, 12)
    plan = Plan(rows, batch_size)
    expected = dealt(rows, batch_size)
    assert counts(plan) == expected
    assert plan.steps == len(expected)
    steps = draw.sample(range(plan.steps), min(5, plan.steps))
    assert [tuple(plan.count(rank, step) for rank in range(len(rows))) for step in steps] == [
        expected[step] for step in steps
    ]


@pytest.mark.parametrize(
    "rows",
    [(1,), (0, 1), (1, 1, 1, 1), (5, 5, 5), (3, 6, 9), (997, 1, 0), (1,) * 33, (0, 0, 7), (2, 4, 8, 16, 32)],
    ids=str,
)
def test_the_plan_of_parts_with_many_ties(rows: tuple[int, ...]) -> None:
    for batch_size in range(1, 40):
        assert counts(Plan(rows, batch_size)) == dealt(rows, batch_size)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_comes_exactly_once(seed: int) -> None:
    draw = random.Random(1000 + seed)
    rows = random_rows(draw, draw.randint(1, 20))
    plan = Plan(rows, draw.randint(1, 50))
    for rank, own in enumerate(rows):
        offsets = [plan.offset(rank, step) for step in range(plan.steps + 1)]
        assert offsets[0] == 0
        assert offsets[-1] == own
        assert all(first <= last for first, last in itertools.pairwise(offsets))
        assert sum(plan.count(rank, step) for step in range(plan.steps)) == own


@pytest.mark.parametrize("seed", range(20))
def test_counts_sum_to_the_global_batch(seed: int) -> None:
    draw = random.Random(2000 + seed)
    rows, batch_size = (*random_rows(draw, draw.randint(1, 20)), 3), draw.randint(1, 50)
    plan = Plan(rows, batch_size)
    for step, each in enumerate(counts(plan)):
        assert min(each) >= 0
        last = step == plan.steps - 1
        assert sum(each) == plan.size(step) == (plan.total - step * batch_size if last else batch_size)


def test_a_hundred_parts() -> None:
    draw = random.Random(7)
    rows = random_rows(draw, 100)
    for batch_size in (3, 7, 64, 1000, sum(rows)):
        assert counts(Plan(rows, batch_size)) == dealt(rows, batch_size)


def test_a_batch_larger_than_the_data_is_one_step() -> None:
    plan = Plan((3, 0, 4), 1000)
    assert plan.steps == 1
    assert plan.size(0) == 7
    assert plan.offsets(1) == (3, 0, 4)


def test_no_rows_are_no_steps() -> None:
    for rows in ((), (0,), (0, 0, 0)):
        assert Plan(rows, 8).steps == 0
        assert Plan(rows, 8).offsets(0) == rows


def test_beyond_the_last_step_there_is_nothing() -> None:
    plan = Plan((3, 4), 2)
    assert [plan.count(rank, plan.steps + 5) for rank in range(2)] == [0, 0]
    assert plan.size(plan.steps) == 0


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_of_nothing_is_refused(batch_size: int) -> None:
    with pytest.raises(InvalidInput, match=f"batchSize is {batch_size}; expected at least 1"):
        Plan((3,), batch_size)


# ---- huge parts ------------------------------------------------------------------------------------------------------

BILLIONS = [
    (3_000_000_019, 1, 0, 2_999_999_999, 7),
    (10**12 + 39, 10**12 + 39, 10**12 + 38),
    (2**53 + 1, 2**53 - 1, 3),  # where doubles no longer tell neighbours apart
    tuple(10**9 + 7 * rank for rank in range(100)),
]


@pytest.mark.parametrize("rows", BILLIONS, ids=lambda rows: f"{len(rows)} parts of {rows[0]}")
def test_billions_of_rows_stay_exact(rows: tuple[int, ...]) -> None:
    """What has been given is a prefix of the order if no row of it comes after one that has not been given."""
    draw = random.Random(3)
    for batch_size in (1, 256, 65_537, 10**9 + 9):
        plan = Plan(rows, batch_size)
        steps = {0, 1, 2, plan.steps - 1, plan.steps, *(draw.randrange(plan.steps) for _ in range(20))}
        for step in steps:
            given = plan.offsets(step)
            assert sum(given) == min(step * batch_size, sum(rows))
            assert all(0 <= taken <= n for taken, n in zip(given, rows, strict=True))
            pairs = list(enumerate(zip(given, rows, strict=True)))
            last = max(((Fraction(2 * t - 1, 2 * n), rank) for rank, (t, n) in pairs if t), default=(Fraction(-1), 0))
            coming = min(((Fraction(2 * t + 1, 2 * n), rank) for rank, (t, n) in pairs if t < n), default=(2, 0))
            assert last < coming


@pytest.mark.parametrize("seed", range(10))
def test_no_part_runs_dry_before_the_others(seed: int) -> None:
    """A part has given its proportion of the rows so far, but for the rounding of its rows and of the others'."""
    draw = random.Random(seed)
    rows = tuple(draw.randint(1, 500) for _ in range(draw.randint(2, 8)))
    plan = Plan(rows, draw.randint(1, 64))
    for step in range(plan.steps):
        for rank, own in enumerate(rows):
            proportion = Fraction(step * plan.batch_size * own, plan.total)
            assert abs(plan.offset(rank, step) - proportion) <= 1 + Fraction(len(rows) * own, 2 * plan.total)


# ---- permutations ----------------------------------------------------------------------------------------------------


def test_every_member_makes_the_same_plan() -> None:
    plan = Plan((40, 1, 0, 25), 16, seed=5)
    for other in (Plan((40, 1, 0, 25), 16, seed=5), copy.deepcopy(plan)):
        assert other == plan
        assert counts(other) == counts(plan)
        for rank in range(4):
            assert torch.equal(other.permutation(rank, 3), plan.permutation(rank, 3))


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_a_permutation_has_every_row_once(rows: int) -> None:
    found = Plan((rows, 5), 4).permutation(0, 2)
    assert found.dtype == torch.int32
    assert sorted(found.tolist()) == list(range(rows))


def test_a_permutation_depends_on_seed_epoch_and_rank_alone() -> None:
    expected = Plan((500, 500), 16, seed=9).permutation(1, 4)
    assert torch.equal(Plan((3, 500, 77), 1, seed=9).permutation(1, 4), expected)
    for noise in range(3):
        torch.manual_seed(noise)
        assert torch.equal(Plan((500, 500), 16, seed=9).permutation(1, 4), expected)


def test_a_permutation_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    Plan((500,), 16).permutation(0, 0)
    assert torch.equal(torch.rand(4), expected)


def test_no_two_triples_share_a_permutation() -> None:
    seeds = (0, 1, 2, 5, -1, -2, 2**31, 2**32, 2**32 - 1, 2**32 + 1, 2**32 + 5, 5 << 32, 2**63, 2**64 - 3)
    seen: dict[bytes, tuple[int, int, int]] = {}
    for seed in seeds:
        plan = Plan((200,) * 6, 16, seed=seed)
        for epoch, rank in itertools.product((*range(6), 2**32), range(6)):
            found = plan.permutation(rank, epoch).numpy().tobytes()
            assert seen.setdefault(found, (seed, epoch, rank)) == (seed, epoch, rank)
    assert len(seen) == len(seeds) * 7 * 6


def test_without_shuffling_rows_keep_their_order() -> None:
    plan = Plan((6, 3), 4, shuffle=False)
    assert plan.permutation(0, 0).tolist() == plan.permutation(0, 7).tolist() == list(range(6))


def test_generators_of_different_keys_differ() -> None:
    words = (0, 1, 2**32, 2**32 + 1)
    keys = [key for length in range(1, 4) for key in itertools.product(words, repeat=length)]
    assert len({generator(*key).initial_seed() for key in keys}) == len(keys)


def test_a_generator_gives_the_same_numbers_again() -> None:
    assert torch.equal(torch.rand(9, generator=generator(1, 2, 3)), torch.rand(9, generator=generator(1, 2, 3)))
