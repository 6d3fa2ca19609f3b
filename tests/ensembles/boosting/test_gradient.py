"""Gradient boosting: equal to scikit-learn and to a serial computation."""

from __future__ import annotations

import math
from contextlib import ExitStack

import numpy as np
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import DecisionTreeRegressor, GBTRegressor, LinearRegression
from pyspark.sql import functions as F
from sklearn.ensemble import GradientBoostingRegressor

from sparkdl import Bagging, Boosting, InvalidInput, SparkdlError
from sparkdl.ensembles.boosting.gradient import RESIDUAL, GradientRounds, start_of
from sparkdl.ensembles.target import Target
from sparkdl.spark.columns import ROW_ID
from sparkdl.training.callbacks.early_stopping import EarlyStopping
from tests.ensembles.fakes import Cut, rows
from tests.rounds.data import diabetes
from tests.sessions import frame

pytestmark = pytest.mark.slow

MEMBERS = [Cut(at, low, high) for at, low, high in [(1.0, -1.0, 0.5), (2.0, -0.3, 0.9), (0.8, -0.7, 0.2)]]
TARGET = Target("label", "w", validation="held")


@pytest.fixture
def begin(spark):
    """Starts rounds, and closes them after the test."""
    with ExitStack() as stack:

        def begun(arrays, partitions=3):
            numbered = frame(arrays).repartition(partitions).withColumn(ROW_ID, F.col("row"))
            start, stopping = start_of(numbered, TARGET), EarlyStopping(None)
            rounds = GradientRounds(numbered, TARGET, start, 0.5, prediction="prediction", stopping=stopping)
            stack.callback(rounds.running.close)
            return rounds, start

        yield begun


def held_out() -> dict[str, np.ndarray]:
    return rows() | {"held": rows()["row"] % 4 == 0}


def test_rounds_equal_a_serial_computation_in_any_partitions(begin):
    arrays = held_out()
    (rounds, start), (other, _) = begin(arrays), begin(arrays, 1)
    x, y, w, train = arrays["x"], arrays["label"], arrays["w"], ~arrays["held"]
    model = np.full(len(x), math.fsum((w * y)[train]) / math.fsum(w[train]))
    assert start.mean == pytest.approx(model[0], rel=1e-13)
    for index, member in enumerate(MEMBERS):
        residuals = {row["row"]: row[RESIDUAL] for row in rounds.member_rows().collect()}
        assert residuals == pytest.approx({row: (y - model)[row] for row in arrays["row"][train]}, rel=1e-12)
        model += 0.5 * member.of(x)
        row = rounds.evaluate_member(index, member).row
        assert other.evaluate_member(index, member).row == row
        for name, chosen in (("loss", train), ("valid_loss", ~train)):
            expected = math.fsum((w * (y - model) ** 2)[chosen]) / math.fsum(w[chosen])
            assert row[name] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_infinite_predictions_raise(begin, value):
    with pytest.raises(SparkdlError, match="member 7 predicts numbers that are not finite"):
        begin(held_out())[0].evaluate_member(7, Cut(2.5, 0.0, value))


@pytest.mark.parametrize(
    ("labels", "weights", "held", "message"),
    [
        ([0.0, math.nan], [1.0, 1.0], [False, True], "1 rows have a label"),
        ([0.0, 1.0], [0.0, 1.0], [False, True], "no training row has a weight above 0"),
        ([0.0, 1.0], [1.0, 1.0], [False, False], "no validation row of 'held' has a weight above 0"),
    ],
)
def test_invalid_rows_raise(spark, labels, weights, held, message):
    invalid = frame({"label": np.array(labels), "w": np.array(weights), "held": np.array(held)})
    with pytest.raises(InvalidInput, match=message):
        start_of(invalid, TARGET)


@pytest.fixture(scope="module")
def patients(spark):
    x, y = diabetes()
    arrays = {"x": x, "far": y + 100, "w": np.linspace(0.5, 3.0, len(y)), "held": np.arange(len(y)) % 5 == 0}
    vectors = array_to_vector("x").alias("features")
    return frame(arrays).select("far", "w", "held", vectors).repartition(3).cache()


@pytest.mark.parametrize("weighted", [False, True])
def test_boosted_trees_equal_those_of_scikit_learn(patients, weighted):
    """Every split is of the same rows, for there are as many bins as values."""
    x, y = diabetes()
    base = DecisionTreeRegressor(maxDepth=2, maxBins=512, labelCol="far")
    if weighted:
        base.setWeightCol("w")
    fitted = Boosting(base=base, numModels=3, learningRate=0.5).fit(patients)
    weights = np.linspace(0.5, 3.0, len(y)) if weighted else None
    expected = GradientBoostingRegressor(n_estimators=3, max_depth=2, learning_rate=0.5).fit(x, y + 100, weights)
    assert [row["loss"] for row in fitted.history] == pytest.approx(list(expected.train_score_), rel=1e-9)
    assert (fitted.rule, fitted.weights) == ("sum", [0.5] * 3)
    assert fitted.intercept == pytest.approx(np.average(y + 100, weights=weights), rel=1e-12)
    scored = fitted.transform(patients).select("prediction").toPandas()
    np.testing.assert_allclose(np.sort(scored["prediction"]), np.sort(expected.predict(x)), rtol=1e-9)


def test_early_stopping_keeps_the_members_up_to_the_best(patients):
    """With a rate of 1 the first line leaves nothing for the second."""
    base = LinearRegression(labelCol="far")
    boosting = Boosting(base=base, numModels=5, learningRate=1.0, validationIndicatorCol="held", patience=1, seed=3)
    fitted = boosting.fit(patients)
    assert (len(fitted.models), len(fitted.history)) == (1, 2)
    assert fitted.report["over"] == "the loss on validation rows"
    alone = base.fit(patients.where("not held"))
    np.testing.assert_allclose(fitted.models[0].coefficients, alone.coefficients, rtol=1e-6)
    assert fitted.evaluate(patients.where("held")).rmse ** 2 == pytest.approx(fitted.history[0]["valid_loss"])
    assert (fitted.summary.best_epoch, fitted.summary.metrics["valid_loss"]) == (0, fitted.history[0]["valid_loss"])


def test_validation_rows_of_a_pyspark_base_are_its_own(patients):
    """GBTRegressor stops early on its validation rows; boosting shows them to members, and counts none of them."""
    base = GBTRegressor(labelCol="far", maxIter=8, maxDepth=3, validationIndicatorCol="held", seed=1)
    fitted = Boosting(base=base, numModels=1, learningRate=1.0).fit(patients)
    training = patients.where("not held")
    mean = training.agg(F.avg("far")).first()[0]
    assert fitted.intercept == pytest.approx(mean, rel=1e-12)
    residuals = patients.withColumn("far", F.col("far") - mean)
    [tree] = [base.copy({base.seed: fitted.models[0].getSeed()}).fit(residuals)]
    assert fitted.models[0].toDebugString.partition("\n")[2] == tree.toDebugString.partition("\n")[2]
    assert fitted.models[0].getNumTrees < 8
    loss = fitted.transform(training).agg(F.avg((F.col("prediction") - F.col("far")) ** 2)).first()[0]
    assert fitted.history[0]["loss"] == pytest.approx(loss, rel=1e-9)
    [bagged] = Bagging(base=base, numModels=1, bootstrap=False, subsamplingRate=0.5).fit(patients).models
    assert bagged.getOrDefault("validationIndicatorCol") == "held"
    assert bagged.getNumTrees < 8
