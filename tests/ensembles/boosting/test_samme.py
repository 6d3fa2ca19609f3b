"""SAMME: its equations, and its rounds against a serial computation."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark.sql import functions as F

from sparkdl.ensembles.boosting import running_sums
from sparkdl.ensembles.boosting.running_sums import SUM, TERM
from sparkdl.ensembles.boosting.samme import WEIGHT, Samme, SammeRounds, classes_of
from sparkdl.ensembles.target import Target
from sparkdl.errors import InvalidInput
from sparkdl.spark.columns import ROW_ID
from sparkdl.spark.session import release
from tests.ensembles.fakes import Cut, rows
from tests.sessions import frame

pytestmark = pytest.mark.slow

MEMBERS = [Cut(at, low, high) for at, low, high in [(1.0, 0, 1), (2.0, 1, 2), (0.8, 0, 2), (1.5, 1, 2)] * 2]
WEIGHTED = Target("label", "w")


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 10, 49])
def test_weight_of_a_member_is_0_at_chance(classes):
    """Chance is exact, also where 1 - 1/K is rounded up, as 2/3 is."""
    equations = Samme(classes, 0.5)
    assert equations.chance == pytest.approx((classes - 1) / classes)
    assert equations.alpha(equations.chance) == pytest.approx(0.0, abs=1e-12)
    assert equations.alpha(0.1) == pytest.approx(0.5 * math.log(9 * (classes - 1)))
    assert equations.alpha(0.1) < equations.alpha(0.01)
    assert equations.alpha(0.0) == 1.0
    rows = 3 * 2**53
    wrong, right = rows * (classes - 1), rows
    assert equations.by_chance(wrong, right)
    assert equations.by_chance(wrong + 1, right - 1)
    assert not equations.by_chance(wrong - 1, right + 1)


# ---- rounds ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def begin(spark):
    """Starts rounds, and closes them after the test."""
    with ExitStack() as stack:

        def begun(given=None, partitions=3, target=WEIGHTED, rate=0.2):
            numbered = frame(given or rows()).repartition(partitions).withColumn(ROW_ID, F.col("row"))
            rounds = SammeRounds(numbered, target, classes_of(numbered, target)[0], rate, "prediction")
            stack.callback(rounds.running.close)
            return rounds

        yield begun


def persistent(spark) -> set[int]:
    """The RDDs that executors hold."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


def errors(rounds: SammeRounds, members: list[Cut]) -> list[tuple[float, float]]:
    history = [rounds.evaluate_member(index, member).row for index, member in enumerate(members)]
    return [(row["error"], row["weight"]) for row in history]


def test_errors_equal_a_serial_computation_and_are_bit_identical_in_any_partitions(begin):
    arrays, rounds, other = rows(), begin(rate=1.0), begin(rate=1.0, partitions=1)
    own = arrays["w"].copy()
    for index, member in enumerate(MEMBERS[:5]):
        weights = [row[0] for row in rounds.member_rows().select(WEIGHT).collect()]
        assert math.fsum(weights) / len(weights) == pytest.approx(1.0, rel=1e-12)
        row = rounds.evaluate_member(index, member).row
        assert other.evaluate_member(index, member).row == row
        missed = member.of(arrays["x"]) != arrays["label"]
        assert row["error"] == pytest.approx(math.fsum(own[missed]) / math.fsum(own), rel=1e-12)
        own *= np.exp(row["weight"] * missed)
    assert not {SUM, TERM} & {*rounds.member_rows().columns}


def test_rows_of_weight_0_and_validation_rows_of_the_base_do_not_count(begin):
    arrays = rows()
    arrays["w"][arrays["row"] % 3 == 0] = 0.0
    arrays["held"] = arrays["row"] % 3 == 1
    rounds = begin(arrays, target=Target("label", "w", watched="held"))
    used = arrays["row"] % 3 == 2
    missed = MEMBERS[0].of(arrays["x"]) != arrays["label"]
    expected = math.fsum(arrays["w"][used & missed]) / math.fsum(arrays["w"][used])
    assert rounds.evaluate_member(0, MEMBERS[0]).row["error"] == pytest.approx(expected, rel=1e-12)
    assert rounds.member_rows().where("w = 0").agg(F.max(WEIGHT)).collect()[0][0] == 0.0


def test_members_that_end_boosting(begin):
    """One without error is the last; one no better than chance is discarded, and an error if it is the first."""
    labels = (np.arange(6) > 2).astype(float)
    perfect = begin({"row": np.arange(6), "x": np.arange(6.0), "label": labels}, target=Target("label"))
    verdict = perfect.evaluate_member(0, Cut(2.5))
    assert (verdict.weight, verdict.row["error"]) == (1.0, 0.0)
    assert verdict.stop_reason
    rounds = begin()
    with pytest.raises(InvalidInput, match="first member has a weighted error"):
        rounds.evaluate_member(0, Cut(3.0, 5.0, 5.0))
    assert rounds.evaluate_member(0, MEMBERS[0]).weight
    verdict = rounds.evaluate_member(1, Cut(3.0, 5.0, 5.0))
    assert verdict.weight is None
    assert verdict.stop_reason
    balanced = {"row": np.arange(9), "x": np.arange(9.0), "label": np.arange(9) % 3 * 1.0}
    with pytest.raises(InvalidInput, match=r"weighted error of 0\.667, and chance gives 0\.667"):
        begin(balanced, target=Target("label")).evaluate_member(0, Cut(20.0))


# ---- the rows between rounds -----------------------------------------------------------------------------------------


def test_plan_does_not_grow(spark, begin):
    before = persistent(spark)
    rounds = begin()
    errors(rounds, MEMBERS[:3])
    few = rounds.running.frame._jdf.queryExecution().toString()
    assert all(rounds.evaluate_member(index, MEMBERS[index]).weight for index in range(3, 8))
    assert len(rounds.running.frame._jdf.queryExecution().toString()) < 1.1 * len(few)
    assert len(persistent(spark) - before) == 1
    rounds.running.close()
    assert persistent(spark) <= before


def test_lost_rows_are_computed_again_with_equal_bits(begin, monkeypatch):
    monkeypatch.setattr(running_sums, "_MEMBERS_PER_JOB", 2)
    rounds, whole = begin(), begin()
    expected = errors(rounds, MEMBERS[:3])
    release(rounds.running._stored)  # like the loss of an executor
    row = rounds.running.retry_on_lost_blocks(lambda: rounds.evaluate_member(3, MEMBERS[3])).row
    assert errors(whole, MEMBERS[:4]) == [*expected, (row["error"], row["weight"])]
    sums = [one.running.predict(MEMBERS[0]).select("row", SUM).collect() for one in (rounds, whole)]
    assert sorted(map(tuple, sums[0])) == sorted(map(tuple, sums[1]))


def test_rows_lost_at_the_start_are_computed_again_and_a_failed_start_holds_none(spark, begin, monkeypatch):
    first, begun = SammeRounds._begin, []

    def loses(rounds):
        begun.append(rounds)
        if len(begun) == 1:
            release(rounds.running._stored)
        first(rounds)

    monkeypatch.setattr(SammeRounds, "_begin", loses)
    before = persistent(spark)
    rounds = begin()
    assert begun == [rounds, rounds]
    assert (rounds._rows, rounds._peak) == (240, pytest.approx(math.log(rows()["w"].max())))
    rounds.running.close()
    monkeypatch.setattr(SammeRounds, "_begin", Mock(side_effect=ValueError("at once")))
    with pytest.raises(ValueError, match="at once"):
        begin()
    assert persistent(spark) <= before


@pytest.mark.parametrize("message", ["CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "of another kind"])
def test_failed_recovery_holds_nothing(spark, begin, monkeypatch, message):
    rounds, before = begin(), persistent(spark)
    materialize = Mock(side_effect=[running_sums._materialize(rounds.running._input), RuntimeError(message)])
    rounds.running._members = [(MEMBERS[0], 1.0)]
    monkeypatch.setattr(running_sums, "_materialize", materialize)
    with suppress(RuntimeError) if message.startswith("CHECKPOINT") else pytest.raises(RuntimeError, match=message):
        rounds.running._recover()
    assert materialize.call_count == 2
    assert persistent(spark) == before


@pytest.mark.parametrize(
    ("loses", "calls", "message"), [(False, 1, "of the step"), (True, 4, "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND")]
)
def test_step_is_retried_only_after_lost_rows(begin, loses, calls, message):
    rounds, called = begin(), []

    def step():
        called.append(1)
        if not loses:
            raise ValueError("of the step")
        release(rounds.running._stored)
        rounds.running.frame.count()

    with pytest.raises(Exception, match=message):
        rounds.running.retry_on_lost_blocks(step)
    assert len(called) == calls


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
def test_invalid_labels_and_weights_raise(spark, labels, weights, message):
    invalid = frame({"label": np.array(labels), "w": np.array(weights)})
    with pytest.raises(InvalidInput, match=message):
        classes_of(invalid, WEIGHTED)


def test_missing_classes_do_not_count(spark):
    sparse = frame({"label": np.array([1.0, 4.0, 4.0]), "w": np.array([1.0, 2.0, 0.5])})
    assert classes_of(sparse, WEIGHTED) == (2, 4)
