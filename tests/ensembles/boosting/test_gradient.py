"""Gradient boosting: the same as scikit-learn's, and as a computation on one's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import DecisionTreeRegressor, LinearRegression
from pyspark.sql import functions as F
from sklearn.ensemble import GradientBoostingRegressor

from sparkdl.ensembles.boosting.estimator import Boosting
from sparkdl.ensembles.boosting.gradient import RESIDUAL, GradientRounds, start_of
from sparkdl.ensembles.boosting.target import Target
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.spark.columns import ROW_ID
from sparkdl.training.early_stopping import EarlyStopping
from tests.ensembles.cuts import Cut, frame_of, rows
from tests.rounds.data import diabetes
from tests.sessions import frame

pytestmark = pytest.mark.slow

MEMBERS = [Cut(at, low, high) for at, low, high in [(1.0, -1.0, 0.5), (2.0, -0.3, 0.9), (0.8, -0.7, 0.2)]]
TARGET = Target("label", "w", validation="held")


@pytest.fixture
def begin(spark):
    """Rounds of rows; they are closed after the test."""
    opened = []

    def begun(arrays, partitions=3, target=TARGET, rate=0.5, stopping=None):
        given = frame_of(arrays, partitions).withColumn(ROW_ID, F.col("row"))
        start = start_of(given, target)
        opened.append(
            GradientRounds(
                given, target, start, rate, prediction="prediction", stopping=stopping or EarlyStopping(None)
            )
        )
        return opened[-1], start

    yield begun
    for rounds in opened:
        rounds.running.close()


def held_out() -> dict[str, np.ndarray]:
    arrays = rows()
    return arrays | {"held": arrays["row"] % 4 == 0}


def test_rounds_are_those_of_a_serial_computation(begin):
    arrays = held_out()
    rounds, start = begin(arrays)
    x, y, w, train = arrays["x"], arrays["label"], arrays["w"], ~arrays["held"]
    model = np.full(len(x), math.fsum((w * y)[train]) / math.fsum(w[train]))
    assert start.mean == pytest.approx(model[0], rel=1e-13)
    for index, member in enumerate(MEMBERS):
        given = {row["row"]: row[RESIDUAL] for row in rounds.member_rows().collect()}
        assert given == pytest.approx({row: (y - model)[row] for row in arrays["row"][train]}, rel=1e-12)
        model += 0.5 * member.of(x)
        row = rounds.evaluate_member(index, member).row
        for name, chosen in (("loss", train), ("valid_loss", ~train)):
            expected = math.fsum((w * (y - model) ** 2)[chosen]) / math.fsum(w[chosen])
            assert row[name] == pytest.approx(expected, rel=1e-12)


def test_partitions_do_not_matter(begin):
    one, other = begin(held_out(), 1)[0], begin(held_out(), 4)[0]
    for index, member in enumerate(MEMBERS):
        assert one.evaluate_member(index, member).row == other.evaluate_member(index, member).row


def test_it_is_over_when_the_loss_no_longer_falls(begin):
    rounds, _ = begin(held_out(), stopping=EarlyStopping(1))
    good, bad = Cut(1.5, -0.5, 0.5), Cut(1.5, 2.0, -2.0)
    assert [
        rounds.evaluate_member(index, member).stop_reason is not None for index, member in enumerate((good, bad))
    ] == [False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_predictions_that_are_not_finite(begin, value):
    rounds, _ = begin(held_out())
    with pytest.raises(SparkdlError, match="member 7 predicts numbers that are not finite"):
        rounds.evaluate_member(7, Cut(2.5, 0.0, value))


@pytest.mark.parametrize(
    ("labels", "weights", "held", "message"),
    [
        ([0.0, math.nan], [1.0, 1.0], [False, True], "1 rows have a label"),
        ([0.0, 1.0], [-1.0, 1.0], [False, True], "1 rows have a weight"),
        ([0.0, 1.0], [0.0, 1.0], [False, True], "no training row of weight above 0"),
        ([0.0, 1.0], [1.0, 1.0], [False, False], "no row of weight above 0 is held out by 'held'"),
    ],
)
def test_rows_that_cannot_be(spark, labels, weights, held, message):
    given = frame({"label": np.array(labels), "w": np.array(weights), "held": np.array(held)})
    with pytest.raises(InvalidInput, match=message):
        start_of(given, TARGET)


# ---- whole fits -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patients(spark):
    x, y = diabetes()
    arrays = {
        "x": x,
        "label": y,
        "far": y + 100,
        "w": np.linspace(0.5, 3.0, len(y)),
        "held": np.arange(len(y)) % 5 == 0,
    }
    vectors = array_to_vector("x").alias("features")
    return frame(arrays).select("label", "far", "w", "held", vectors).repartition(3).cache()


def test_trees_boosted_are_those_of_scikit_learn(patients):
    """Every split is of the same rows, for there are as many bins as values."""
    x, y = diabetes()
    base = DecisionTreeRegressor(maxDepth=2, maxBins=512)
    fitted = Boosting(base=base, numModels=6).fit(patients)
    expected = GradientBoostingRegressor(n_estimators=6, max_depth=2).fit(x, y)
    assert [row["loss"] for row in fitted.history] == pytest.approx(list(expected.train_score_), rel=1e-9)
    found = [row[0] for row in fitted.transform(patients.coalesce(1)).select("prediction").collect()]
    loss = np.mean((np.array(found) - [row[0] for row in patients.coalesce(1).select("label").collect()]) ** 2)
    assert loss == pytest.approx(expected.train_score_[-1], rel=1e-9)
    assert (fitted.rule, fitted.weights, fitted.intercept) == ("sum", [0.1] * 6, pytest.approx(0.0, abs=1e-12))


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_numbers_far_from_0_are_boosted_as_by_scikit_learn(patients, weighted):
    x, y = diabetes()
    base = DecisionTreeRegressor(maxDepth=2, maxBins=512, labelCol="far")
    if weighted:
        base.setWeightCol("w")
    fitted = Boosting(base=base, numModels=3, learningRate=0.5).fit(patients)
    weights = np.linspace(0.5, 3.0, len(y)) if weighted else None
    expected = GradientBoostingRegressor(n_estimators=3, max_depth=2, learning_rate=0.5).fit(x, y + 100, weights)
    assert [row["loss"] for row in fitted.history] == pytest.approx(list(expected.train_score_), rel=1e-9)
    assert fitted.intercept == pytest.approx(np.average(y + 100, weights=weights), rel=1e-12)
    scored = fitted.transform(patients).select("far", "prediction").toPandas().sort_values("far")
    order = np.argsort(y, kind="stable")
    np.testing.assert_allclose(np.sort(scored["prediction"]), np.sort(expected.predict(x)), rtol=1e-9)
    np.testing.assert_array_equal(scored["far"], (y + 100)[order])


def test_early_stopping_keeps_the_members_up_to_the_best(patients):
    """With a rate of 1 the first line leaves nothing for the second."""
    boosting = Boosting(
        base=LinearRegression(), numModels=5, learningRate=1.0, validationIndicatorCol="held", patience=1, seed=3
    )
    fitted = boosting.fit(patients)
    assert (len(fitted.models), len(fitted.history)) == (1, 2)
    assert fitted.report["over"] == "the loss on validation rows"
    alone = LinearRegression().fit(patients.where("not held"))
    np.testing.assert_allclose(fitted.models[0].coefficients, alone.coefficients, rtol=1e-6)
