"""Which rows a member is given: the same as NumPy arrays and as Spark columns, and what chance says they are."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest

from sparkdl.ensembles.resampling.bootstrap import (
    AllRows,
    Bootstrap,
    LeaveFoldOut,
    fold_column,
    member_seed,
    uniform,
    uniform_column,
)
from sparkdl.errors import InvalidInput

IDS = np.array([0, 1, 2, 7, -1, -(2**62), 2**62, 2**63 - 1, -(2**63), 8589934592, *range(100, 400)], np.int64)
SEEDS = (0, 1, -5, 2**31 - 1, 2**63 - 1)
DRAWS = [
    AllRows(),
    Bootstrap(1.0, True, 3),
    Bootstrap(0.1, True, 4),
    Bootstrap(5.5, True, -2),
    Bootstrap(12.0, True, 1),
    Bootstrap(0.5, False, 3),
    Bootstrap(1.0, False, 3),
    LeaveFoldOut(0, 3, 9),
    LeaveFoldOut(6, 7, -9),
]
MANY = np.arange(1_000_000, dtype=np.int64)


def test_chances_are_the_same_whatever_runs_here():
    """Kept members depend on them: a change would train other members of the same seed."""
    found = uniform(np.array([0, 1, -1, 2**62], np.int64), 0)
    assert found.tolist() == [0.5012707115914632, 0.4489558218815157, 0.8144534773640478, 0.9903291530903459]
    assert uniform(np.array([7], np.int64), -5).tolist() == [0.8619631530220555]


@pytest.mark.slow
def test_spark_draws_what_numpy_draws(spark):
    from pyspark.sql import functions as F

    frame = spark.createDataFrame([(value,) for value in IDS.tolist()], "id bigint").repartition(3)
    wanted = [draw.column(F.col("id")).alias(f"draw{number}") for number, draw in enumerate(DRAWS)]
    chances = [uniform_column(F.col("id"), seed).alias(f"chance{seed}") for seed in SEEDS]
    folds = fold_column(F.col("id"), 5, 11).alias("fold")
    found = frame.select("id", folds, *wanted, *chances).toPandas().set_index("id").loc[IDS]
    for number, draw in enumerate(DRAWS):
        np.testing.assert_array_equal(found[f"draw{number}"], draw.counts(IDS), str(draw))
    for seed in SEEDS:
        np.testing.assert_array_equal(found[f"chance{seed}"], uniform(IDS, seed))
    np.testing.assert_array_equal(found["fold"], np.floor(uniform(IDS, 11) * 5))


@pytest.mark.slow
def test_spark_draws_at_the_largest_rate(spark):
    from pyspark.sql import functions as F

    draw = Bootstrap(100.0, True, 1)
    found = spark.range(50).select("id", draw.column(F.col("id")).alias("count")).toPandas().sort_values("id")
    np.testing.assert_array_equal(found["count"], draw.counts(np.arange(50)))


def test_ids_of_narrower_types_are_the_same_ids(spark):
    from pyspark.sql import functions as F

    draw = Bootstrap(1.0, True, 3)
    frame = spark.range(200).select(
        "id", F.col("id").cast("int").alias("int"), F.col("id").cast("short").alias("short")
    )
    found = frame.select(*(draw.column(F.col(name)).alias(name) for name in frame.columns)).toPandas()
    assert (found["id"] == found["int"]).all()
    assert (found["id"] == found["short"]).all()


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_a_draw_depends_on_the_id_alone(draw):
    order = np.random.default_rng(0).permutation(len(IDS))
    counts = draw.counts(IDS)
    np.testing.assert_array_equal(draw.counts(IDS[order]), counts[order])
    parts = np.concatenate([draw.counts(part) for part in np.array_split(IDS, 7)])
    np.testing.assert_array_equal(parts, counts)
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(draw)).counts(IDS), counts)
    assert draw.repeats or counts.max() <= 1
    assert draw.counts(IDS[:0]).shape == (0,)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.0])
def test_a_bootstrap_has_the_frequencies_of_poisson(rate):
    counts = Bootstrap(rate, True, 5).counts(MANY)
    # Five standard errors of the mean and, with the fourth moment of a Poisson, of the variance.
    assert abs(counts.mean() - rate) < 5 * (rate / len(MANY)) ** 0.5
    assert abs(counts.var() - rate) < 5 * ((rate + 2 * rate**2) / len(MANY)) ** 0.5
    chance = np.exp(-rate)
    for k in range(6):
        assert abs((counts == k).mean() - chance) < 5 * (chance / len(MANY)) ** 0.5
        chance *= rate / (k + 1)


def test_a_share_without_replacement():
    counts = Bootstrap(0.3, False, 5).counts(MANY)
    assert set(counts.tolist()) == {0, 1}
    assert abs(counts.mean() - 0.3) < 5 * (0.21 / len(MANY)) ** 0.5
    assert Bootstrap(1.0, False, 5).counts(MANY).all()


def test_chances_are_uniform_and_those_of_two_seeds_have_nothing_to_do_with_each_other():
    one, other, next_row = uniform(MANY, 0), uniform(MANY, 1), uniform(MANY + 1, 0)
    assert one.min() >= 0
    assert one.max() < 1
    buckets = np.bincount((one * 100).astype(int), minlength=100)
    assert ((buckets - 10_000) ** 2 / 10_000).sum() < 180  # of 99 degrees of freedom: chi-squared, 1 in 10^6
    assert abs(np.corrcoef(one, other)[0, 1]) < 5e-3
    assert abs(np.corrcoef(one, next_row)[0, 1]) < 5e-3


def test_each_row_is_held_in_one_fold():
    held = np.sum([1 - LeaveFoldOut(fold, 5, 8).counts(MANY) for fold in range(5)], axis=0)
    assert (held == 1).all()
    share = LeaveFoldOut(2, 5, 8).counts(MANY).mean()
    assert abs(share - 0.8) < 2e-3


@pytest.mark.parametrize(("rate", "replace"), [(0.0, True), (-1.0, False), (1.5, False), (101.0, True), (np.nan, True)])
def test_a_rate_that_is_none_is_refused(rate, replace):
    with pytest.raises(InvalidInput, match="expected one above 0"):
        Bootstrap(rate, replace, 0)


@pytest.mark.parametrize("seed", [0, 1, -1, 42, 2**31, 2**63 - 1, -(2**63), 2**80])
def test_no_two_members_have_the_same_seed(seed):
    found = [member_seed(seed, index) for index in range(20_000)]
    assert len(set(found)) == len(found)
    assert min(found) >= 0
    assert max(found) < 2**31


def test_member_seeds_are_the_same_whatever_runs_here():
    assert [member_seed(0, index) for index in range(4)] == [1912877120, 866576929, 1266004487, 1656550357]
    assert member_seed(-1, 0) == 1913495754
    assert member_seed(2**31, 7) == 534123824


def test_ensembles_of_neighbouring_seeds_share_no_members():
    seeds = {member_seed(seed, index) for seed in range(100) for index in range(100)}
    assert len(seeds) > 9_990  # of 2^31 numbers, 10^4 at random have two alike once in 40 times
