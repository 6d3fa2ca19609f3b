"""SAMME: its arithmetic, its rounds against a computation on one's own, and sums that are exact."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from pyspark.sql import functions as F

from sparkdl.ensembles.boosting import running_sums
from sparkdl.ensembles.boosting.exact_sums import exact_sums
from sparkdl.ensembles.boosting.running_sums import SUM, TERM
from sparkdl.ensembles.boosting.samme import WEIGHT, Samme, SammeRounds, classes_of
from sparkdl.ensembles.boosting.target import Target
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import ROW_ID
from sparkdl.spark.jvm import release
from tests.ensembles.cuts import Cut, frame_of, rows
from tests.sessions import frame

pytestmark = pytest.mark.slow

MEMBERS = [Cut(at, low, high) for at, low, high in [(1.0, 0, 1), (2.0, 1, 2), (0.8, 0, 2), (1.5, 1, 2)] * 4]
WEIGHTED = Target("label", "w")


# ---- arithmetic -------------------------------------------------------------------------------------------------


def test_two_classes_are_adaboost_m1():
    """Freund and Schapire: the weights of right rows count beta = err / (1 - err) times; members weigh log 1/beta."""
    random = np.random.default_rng(0)
    samme, m1 = np.ones(200), np.ones(200) / 200
    for _ in range(10):
        wrong = random.uniform(size=200) < 0.3
        error = float(samme[wrong].sum() / samme.sum())
        beta = m1[wrong].sum() / (1 - m1[wrong].sum())
        assert Samme(2).alpha(error) == pytest.approx(-math.log(beta), rel=1e-12)
        samme *= np.exp(Samme(2).alpha(error) * wrong)
        m1 *= np.where(wrong, 1.0, beta)
        m1 /= m1.sum()
        np.testing.assert_allclose(samme / samme.sum(), m1, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_weight_of_a_member(classes):
    """It is 0 where the error is chance, and grows as the error falls."""
    arithmetic = Samme(classes, 0.5)
    assert arithmetic.chance == pytest.approx((classes - 1) / classes)
    assert arithmetic.alpha(arithmetic.chance) == pytest.approx(0.0, abs=1e-12)
    assert arithmetic.alpha(0.1) == pytest.approx(0.5 * math.log(9 * (classes - 1)))
    assert arithmetic.alpha(0.1) < arithmetic.alpha(0.01)
    assert arithmetic.alpha(0.0) == 1.0


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 10, 49])
def test_exactly_chance_is_chance(classes):
    """Also where 1 - 1/K is rounded up, as 2/3 is."""
    arithmetic, rows = Samme(classes), 3 * 2**53
    wrong, right = rows * (classes - 1), rows
    assert arithmetic.by_chance(wrong, right)
    assert arithmetic.by_chance(wrong + 1, right - 1)
    assert not arithmetic.by_chance(wrong - 1, right + 1)


# ---- sums -------------------------------------------------------------------------------------------------------


def test_sums_are_the_same_in_any_partitions(spark):
    random = np.random.default_rng(1)
    values = random.normal(size=500) * 10.0 ** random.integers(-6, 6, 500)
    given = frame({"v": values, "whole": np.arange(500.0) - 100})
    found = [exact_sums(given.repartition(parts), {"v": F.col("v"), "whole": F.col("whole")}) for parts in (1, 2, 5)]
    assert found[0] == found[1] == found[2]
    assert found[0]["whole"] == sum(range(-100, 400))
    assert found[0]["v"] == pytest.approx(math.fsum(values), rel=1e-12)
    unit = Fraction(2) ** (math.frexp(np.abs(values).max())[1] - 53)
    assert found[0]["v"] == float(sum(round(Fraction(value) / unit) for value in values) * unit)


def test_sums_of_what_is_not_there_or_not_finite(spark):
    given = frame({"v": np.array([1.0, math.inf, 2.0]), "n": np.array([1.0, math.nan, 0.0]), "z": np.zeros(3)})
    values = {name: F.col(name) for name in given.columns}
    found = exact_sums(given, values | {"none": F.lit(None).cast("double"), "least": F.lit(5e-324)})
    assert math.isnan(found["v"])
    assert math.isnan(found["n"])
    assert (found["z"], found["none"]) == (0.0, 0.0)
    assert found["least"] == pytest.approx(0.0, abs=1e-300)


# ---- rounds -----------------------------------------------------------------------------------------------------


@pytest.fixture
def begin(spark):
    """Rounds of these rows, of any others, of other columns or another rate; they are closed after the test."""
    opened = []

    def begun(given=None, partitions=3, target=WEIGHTED, rate=0.2):
        given = (frame_of(rows(), partitions) if given is None else given).withColumn(ROW_ID, F.col("row"))
        opened.append(SammeRounds(given, target, classes_of(given, target), rate, "prediction"))
        return opened[-1]

    yield begun
    for rounds in opened:
        rounds.running.close()


def persistent(spark) -> set[int]:
    """What executors hold, by number."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


def errors(rounds: SammeRounds, members: list[Cut] = MEMBERS) -> list[tuple[float, float]]:
    found = [rounds.evaluate_member(index, member).row for index, member in enumerate(members)]
    return [(row["error"], row["weight"]) for row in found]


def test_error_is_that_of_a_serial_computation(begin):
    """To the bit, of the weights that Spark has; and of weights of one's own, as close as these are."""
    arrays, rounds = rows(), begin(rate=1.0)
    own = arrays["w"].copy()
    for index, member in enumerate(MEMBERS[:5]):
        held = rounds.running.frame.select("x", "label", SUM).collect()
        peak = max(row[SUM] for row in held)
        # Java's exp() may differ from Python's in the last bit, so that it is asked for.
        units = [row[0] for row in rounds.running.frame.select(F.exp(F.col(SUM) - F.lit(peak))).collect()]
        wrong = [member.of(np.array(row["x"])) != row["label"] for row in held]
        fixed = [round(Fraction(unit) * 2**53) for unit in units]
        expected = sum(each for each, missed in zip(fixed, wrong, strict=True) if missed) / sum(fixed)
        row = rounds.evaluate_member(index, member).row
        assert row["error"] == expected
        missed = member.of(arrays["x"]) != arrays["label"]
        assert row["error"] == pytest.approx(math.fsum(own[missed]) / math.fsum(own), rel=1e-12)
        own *= np.exp(row["weight"] * missed)


def test_partitions_do_not_matter(begin):
    assert errors(begin(partitions=1), MEMBERS[:5]) == errors(begin(partitions=4), MEMBERS[:5])


def test_weights_of_a_member_have_mean_one(begin):
    rounds = begin(rate=2.0)
    for index, member in enumerate(MEMBERS[:6]):
        weights = [row[0] for row in rounds.member_rows().select(WEIGHT).collect()]
        assert math.fsum(weights) / len(weights) == pytest.approx(1.0, rel=1e-12)
        rounds.evaluate_member(index, member)
    assert SUM not in rounds.member_rows().columns


def test_rows_of_weight_zero_and_those_that_a_base_keeps_out_do_not_count(begin):
    arrays = rows()
    dropped = arrays["row"] % 3 == 0
    arrays["w"][dropped] = 0.0
    arrays["held"] = arrays["row"] % 3 == 1
    rounds = begin(frame_of(arrays), target=Target("label", "w", watched="held"))
    used = arrays["row"] % 3 == 2
    missed = MEMBERS[0].of(arrays["x"]) != arrays["label"]
    expected = math.fsum(arrays["w"][used & missed]) / math.fsum(arrays["w"][used])
    assert rounds.evaluate_member(0, MEMBERS[0]).row["error"] == pytest.approx(expected, rel=1e-12)
    assert rounds.member_rows().where("w = 0").agg(F.max(WEIGHT)).collect()[0][0] == 0.0


def test_a_member_without_error_is_the_last(begin):
    given = frame_of({"row": np.arange(6), "x": np.arange(6.0), "label": (np.arange(6) > 2).astype(float)})
    rounds = begin(given, target=Target("label"))
    verdict = rounds.evaluate_member(0, Cut(2.5))
    assert (verdict.weight, verdict.row["error"]) == (1.0, 0.0)
    assert verdict.stop_reason


def test_a_member_no_better_than_chance_is_discarded(begin):
    rounds = begin()
    with pytest.raises(InvalidInput, match="first member has a weighted error"):
        rounds.evaluate_member(0, Cut(3.0, 5.0, 5.0))
    assert rounds.evaluate_member(0, MEMBERS[0]).weight
    verdict = rounds.evaluate_member(1, Cut(3.0, 5.0, 5.0))
    assert verdict.weight is None
    assert verdict.stop_reason


def test_a_constant_among_balanced_classes_is_discarded(begin):
    given = frame_of({"row": np.arange(9), "x": np.arange(9.0), "label": np.arange(9) % 3 * 1.0})
    with pytest.raises(InvalidInput, match=r"weighted error of 0\.667, and chance gives 0\.667"):
        begin(given, target=Target("label")).evaluate_member(0, Cut(20.0))


# ---- the rows between rounds ------------------------------------------------------------------------------------


def test_the_plan_does_not_grow(spark, begin):
    before = persistent(spark)
    rounds = begin()
    errors(rounds, MEMBERS[:3])
    few = rounds.running.frame._jdf.queryExecution().toString()
    assert all(rounds.evaluate_member(index, MEMBERS[index]).weight for index in range(3, 12))
    many = rounds.running.frame._jdf.queryExecution().toString()
    assert len(many) < 1.1 * len(few)
    assert len(persistent(spark) - before) == 1
    rounds.running.close()
    assert persistent(spark) <= before


@pytest.mark.parametrize("done", [0, pytest.param(9, marks=pytest.mark.slow)])
def test_lost_rows_are_computed_anew_to_the_same_bits(begin, done):
    rounds = begin()
    expected = errors(rounds, MEMBERS[:done])
    before = sorted(map(tuple, rounds.running.frame.select("row", SUM).collect()))
    release(rounds.running._held)  # what is left of held rows when their executor is gone: nothing
    row = rounds.running.retry_on_lost_blocks(lambda: rounds.evaluate_member(done, MEMBERS[done])).row
    after = sorted(map(tuple, rounds.running.look(MEMBERS[0]).select("row", SUM).collect()))
    assert len(before) == len(after)
    whole = begin()
    assert errors(whole, MEMBERS[: done + 1]) == [*expected, (row["error"], row["weight"])]
    assert sorted(map(tuple, whole.running.look(MEMBERS[0]).select("row", SUM).collect())) == after


def test_rows_that_are_lost_as_rounds_begin_are_computed_anew(begin, monkeypatch):
    first, given = SammeRounds._begin, []

    def loses(rounds):
        given.append(rounds)
        if len(given) == 1:
            release(rounds.running._held)
        first(rounds)

    monkeypatch.setattr(SammeRounds, "_begin", loses)
    rounds = begin()
    assert given == [rounds, rounds]
    assert (rounds._rows, rounds._peak) == (240, pytest.approx(math.log(rows()["w"].max())))


def test_rounds_that_cannot_begin_hold_nothing(spark, begin, monkeypatch):
    def fails(_):
        raise ValueError("at once")

    monkeypatch.setattr(SammeRounds, "_begin", fails)
    before = persistent(spark)
    with pytest.raises(ValueError, match="at once"):
        begin()
    assert persistent(spark) == before


@pytest.mark.parametrize("message", ["CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "of another kind"])
def test_sums_that_cannot_be_computed_anew_hold_nothing(spark, begin, monkeypatch, message):
    rounds, hold, held = begin(), running_sums._materialize, []
    errors(rounds, MEMBERS[:2])

    def fails(given):
        held.append(given)
        if len(held) == 2:
            raise RuntimeError(message)
        return hold(given)

    monkeypatch.setattr(running_sums, "_MEMBERS_PER_JOB", 1)
    monkeypatch.setattr(running_sums, "_materialize", fails)
    before = persistent(spark)
    if message.startswith("CHECKPOINT"):
        rounds.running._recover()
    else:
        with pytest.raises(RuntimeError, match=message):
            rounds.running._recover()
    assert len(held) == 2
    assert persistent(spark) == before


def test_a_step_that_fails_by_itself_is_not_taken_again(begin):
    rounds, calls = begin(), []

    def step():
        calls.append(1)
        raise ValueError("of the step")

    with pytest.raises(ValueError, match="of the step"):
        rounds.running.retry_on_lost_blocks(step)
    assert len(calls) == 1


def test_rows_that_are_lost_every_time_are_given_up(begin):
    rounds, calls = begin(), []

    def step():
        calls.append(1)
        release(rounds.running._held)
        rounds.running.frame.count()

    with pytest.raises(Exception, match="CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"):
        rounds.running.retry_on_lost_blocks(step)
    assert len(calls) == 4


def test_a_look_leaves_the_sums_as_they_are(begin):
    rounds = begin()
    first = rounds.running.look(MEMBERS[0])
    assert TERM in first.columns
    assert TERM not in rounds.running.frame.columns
    assert rounds.evaluate_member(0, MEMBERS[0]).row == begin().evaluate_member(0, MEMBERS[0]).row


# ---- rows that cannot be boosted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        ([0.0, 0.5, 1.0], [1.0, 1.0, 1.0], "1 rows have a label in 'label' that is no whole number"),
        ([0.0, -1.0, -2.0], [1.0, 1.0, 1.0], "2 rows have a label"),
        ([0.0, math.nan, 1.0], [1.0, 1.0, 1.0], "1 rows have a label"),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "have 1 classes"),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 1.0], "have 1 classes"),
        ([0.0, 1.0, 1.0], [0.0, -1.0, 1.0], "1 rows have a weight in 'w'"),
        ([0.0, 1.0, 1.0], [1.0, math.inf, math.nan], "2 rows have a weight in 'w'"),
    ],
)
def test_labels_and_weights_that_cannot_be(spark, labels, weights, message):
    given = frame({"label": np.array(labels), "w": np.array(weights)})
    with pytest.raises(InvalidInput, match=message):
        classes_of(given, WEIGHTED)


def test_classes_that_are_not_there_do_not_count(spark):
    given = frame({"label": np.array([1.0, 4.0, 4.0]), "w": np.array([1.0, 2.0, 0.5])})
    found = classes_of(given, WEIGHTED)
    assert (found.present, found.highest, found.peak) == (2, 4, 2.0)
