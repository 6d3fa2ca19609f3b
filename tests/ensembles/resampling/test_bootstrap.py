"""Draws of rows: equal as NumPy arrays and Spark columns, with the frequencies that chance gives."""

import cloudpickle
import numpy as np
import pytest
from pyspark.sql import functions as F

from sparkdl.ensembles.resampling import bootstrap
from sparkdl.ensembles.resampling.bootstrap import AllRows, Bootstrap, LeaveFoldOut, member_seed, uniform
from sparkdl.errors import InvalidInput

IDS = np.array([0, 1, 2, 7, -1, -(2**62), 2**62, 2**63 - 1, -(2**63), 8589934592, *range(100, 400)], np.int64)
SEEDS = (0, 1, -5, 2**31 - 1, 2**63 - 1)
DRAWS = [
    *(AllRows(), Bootstrap(1.0, True, 3), Bootstrap(0.1, True, 4), Bootstrap(12.0, True, 1), Bootstrap(100.0, True, 1)),
    *(Bootstrap(0.5, False, 3), Bootstrap(1.0, False, 3), LeaveFoldOut(0, 3, 9), LeaveFoldOut(6, 7, -9)),
]
MANY = np.arange(1_000_000, dtype=np.int64)


def test_random_numbers_never_change():
    """Stored members depend on them: a change would train other members of the same seed."""
    found = uniform(np.array([0, 1, -1, 2**62], np.int64), 0)
    assert found.tolist() == [0.5012707115914632, 0.4489558218815157, 0.8144534773640478, 0.9903291530903459]
    assert uniform(np.array([7], np.int64), -5).tolist() == [0.8619631530220555]
    assert [member_seed(0, index) for index in range(4)] == [1912877120, 866576929, 1266004487, 1656550357]
    assert (member_seed(-1, 0), member_seed(2**31, 7)) == (1913495754, 534123824)


@pytest.mark.slow
def test_spark_draws_equal_numpy(spark):
    frame = spark.createDataFrame([(value,) for value in IDS.tolist()], "id bigint").repartition(3)
    wanted = [draw.column(F.col("id")).alias(f"draw{number}") for number, draw in enumerate(DRAWS)]
    wanted += [draw.out_of_bag(F.col("id")).alias(f"absent{number}") for number, draw in enumerate(DRAWS)]
    chances = [bootstrap.uniform_column(F.col("id"), seed).alias(f"chance{seed}") for seed in SEEDS]
    folds = bootstrap.fold_column(F.col("id"), 5, 11).alias("fold")
    found = frame.select("id", folds, *wanted, *chances).toPandas().set_index("id").loc[IDS]
    for number, draw in enumerate(DRAWS):
        np.testing.assert_array_equal(found[f"draw{number}"], draw.counts(IDS), str(draw))
        np.testing.assert_array_equal(found[f"absent{number}"], draw.counts(IDS) == 0, str(draw))
    for seed in SEEDS:
        np.testing.assert_array_equal(found[f"chance{seed}"], uniform(IDS, seed))
    np.testing.assert_array_equal(found["fold"], np.floor(uniform(IDS, 11) * 5))
    narrow = spark.range(200).select(F.col("id").cast("int"), F.col("id").cast("short").alias("short"))
    found = narrow.select(*(DRAWS[1].column(F.col(name)).alias(name) for name in narrow.columns)).toPandas()
    np.testing.assert_array_equal(found["id"], DRAWS[1].counts(np.arange(200)))
    np.testing.assert_array_equal(found["short"], found["id"])


@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_draw_depends_on_the_id_alone(draw):
    order = np.random.default_rng(0).permutation(len(IDS))
    counts = draw.counts(IDS)
    np.testing.assert_array_equal(draw.counts(IDS[order]), counts[order])
    np.testing.assert_array_equal(np.concatenate([draw.counts(shard) for shard in np.array_split(IDS, 7)]), counts)
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(draw)).counts(IDS), counts)
    assert draw.repeats or counts.max() <= 1
    assert draw.counts(IDS[:0]).shape == (0,)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.0])
def test_bootstrap_has_the_frequencies_of_poisson(rate):
    counts = Bootstrap(rate, True, 5).counts(MANY)
    # Five standard errors of the mean and, with the fourth moment of a Poisson, of the variance.
    assert abs(counts.mean() - rate) < 5 * (rate / len(MANY)) ** 0.5
    assert abs(counts.var() - rate) < 5 * ((rate + 2 * rate**2) / len(MANY)) ** 0.5
    assert (counts != Bootstrap(rate, True, 6).counts(MANY)).any()
    chance = np.exp(-rate)
    for k in range(6):
        assert abs((counts == k).mean() - chance) < 5 * (chance / len(MANY)) ** 0.5
        chance *= rate / (k + 1)


def test_shares_without_replacement():
    counts = Bootstrap(0.3, False, 5).counts(MANY)
    assert set(counts.tolist()) == {0, 1}
    assert abs(counts.mean() - 0.3) < 5 * (0.21 / len(MANY)) ** 0.5
    assert Bootstrap(1.0, False, 5).counts(MANY).all()


def test_random_numbers_of_seeds_and_of_neighbors_are_independent():
    one, *others = uniform(MANY, 0), uniform(MANY, 1), uniform(MANY + 1, 0)
    for other in others:
        assert abs(np.corrcoef(one, other)[0, 1]) < 5e-3


@pytest.mark.parametrize(("rate", "replace"), [(1.5, False), (101.0, True)])
def test_invalid_rates_raise(rate, replace):
    with pytest.raises(InvalidInput, match="at most 1"):
        Bootstrap(rate, replace, 0)


def test_members_have_different_seeds():
    for seed in (0, 1, -1, 42, 2**31, 2**63 - 1, -(2**63), 2**80):
        seeds = {member_seed(seed, index) for index in range(2_000)}
        assert len(seeds) == 2_000
        assert 0 <= min(seeds) <= max(seeds) < 2**31
    neighbors = {member_seed(seed, index) for seed in range(100) for index in range(100)}
    assert len(neighbors) > 9_990  # of 2^31 numbers, 10^4 at random have two alike once in 40 times
