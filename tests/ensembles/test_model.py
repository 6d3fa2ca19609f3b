"""Several models as one, in one pass of theirs or one after the other, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import GBTClassifier, LinearSVC, LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidatorModel
from pyspark.sql import types as T
from scipy.special import softmax
from torch import nn

from sparkdl.ensembles.model import EnsembleModel
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from tests.ensembles.voters import (
    VECTORS,
    WEIGHTS,
    X,
    chained,
    data,
    found,
    linear,
    member,
    members,
    one_score,
    probabilities,
    scores,
    votes,
)
from tests.ml import nets
from tests.sessions import frame

pytestmark = pytest.mark.slow


@pytest.fixture(params=["together", "chained"])
def way(request):
    """Members that score rows together, or one after the other."""
    return (lambda models: models) if request.param == "together" else chained


# ---- votes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["soft", "hard"])
@pytest.mark.parametrize("factory", [linear, one_score])
def test_votes_equal_numpy(spark, way, rule, factory):
    models, x = members(factory), X.copy()
    x[7, 1] = np.nan  # no member has a prediction of this row
    made = EnsembleModel(
        way([*models, member().setInputCols(["missing"])]),  # members of weight 0 do not run
        rule=rule,
        weights=[*WEIGHTS, 0.0],
        numClasses=2 if factory is one_score else 3,
    ).setDisagreementCol("apart")
    columns = found(made, frame({"row": np.arange(50), "x": x}), *VECTORS, "apart")
    assert all(np.isnan(values[7]).all() for values in columns)
    raw, probability, prediction, apart = (np.delete(values, 7, 0) for values in columns)
    chances = np.delete(probabilities(models), 7, 1)
    expected = votes(chances, rule, WEIGHTS)
    np.testing.assert_allclose(raw, expected, rtol=1e-5)
    np.testing.assert_allclose(probability, expected / sum(WEIGHTS), rtol=1e-5)
    np.testing.assert_array_equal(prediction, expected.argmax(1))
    others = chances.argmax(-1) != expected.argmax(1)
    np.testing.assert_allclose(apart, np.dot(WEIGHTS, others) / sum(WEIGHTS), rtol=1e-12)
    assert len(set(prediction)) == expected.shape[1]
    assert 0 < apart.max() < 1


def test_output_columns(spark, way):
    made = EnsembleModel(way(members()), rule="soft").setDisagreementCol("apart")
    output = made.transform(data())
    assert output.columns == ["row", "x", *VECTORS, "apart"]
    assert [field.dataType for field in output.schema][2:] == [VectorUDT(), VectorUDT(), T.DoubleType(), T.DoubleType()]
    assert made.transform(data().where("row < 0")).collect() == []
    made.setRawPredictionCol("").setProbabilityCol("").setPredictionCol("a.b c").setDisagreementCol("")
    assert made.transform(data()).columns == ["row", "x", "a.b c"]
    assert made.transform(data(), {made.predictionCol: "other"}).columns == ["row", "x", "other"]
    with pytest.raises(InvalidInput, match="there is a column 'x' already; drop it, or set predictionCol"):
        made.setPredictionCol("x").transform(data())


def certain(index):
    """A member that always predicts this class, with the same probability as others of its kind."""
    module = linear()
    module.weight.data.zero_()
    module.bias.data = 3 * torch.eye(3)[index]
    return TorchModel(factory=linear, weights=pack(module), kind="classifier").setInputCols(["x"])


@pytest.mark.parametrize("rule", ["soft", "hard"])
def test_smallest_class_wins_a_tie(spark, way, rule):
    made = EnsembleModel(way([certain(2), certain(1)]), rule=rule, weights=[0.1, 0.1], numClasses=3)
    assert set(found(made, data(), "prediction")[0]) == {1}


@pytest.mark.parametrize(("rule", "thresholds"), [("soft", [0.2, 0.5, 0.9]), ("hard", [0.9, 0.0, 0.9])])
def test_thresholds_equal_those_of_pyspark(spark, way, rule, thresholds):
    models = members()
    made = EnsembleModel(way(models), rule=rule, numClasses=3).setThresholds(thresholds).setDisagreementCol("apart")
    prediction, apart = found(made, data(), "prediction", "apart")
    expected = votes(probabilities(models), rule, [1 / 3] * 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(expected == 0, 0, expected / thresholds)
    np.testing.assert_array_equal(prediction, scaled.argmax(1))
    np.testing.assert_allclose(apart, (probabilities(models).argmax(-1) != prediction).mean(0), atol=1e-12)
    assert (prediction != expected.argmax(1)).any()
    with pytest.raises(Exception, match="thresholds has 2 numbers"):
        made.setThresholds([0.5, 0.5]).transform(data().coalesce(1)).collect()


def test_thresholds_of_members_count_in_hard_votes(spark):
    models = [model.setThresholds([1.0, 1.0, 0.0]) for model in members()]
    (prediction,) = found(EnsembleModel(models, rule="hard", numClasses=3), data(), "prediction")
    assert set(prediction) == {2}
    (raw,) = found(EnsembleModel(models, rule="soft"), data(), "rawPrediction")
    np.testing.assert_allclose(raw, probabilities(models).sum(0), rtol=1e-5)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def flat():
    return nn.Sequential(linear(1), nn.Flatten(0))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_means_and_sums_equal_numpy(spark, way, precision):
    dtype = torch.float64 if precision == "fp64" else torch.float32
    exact = {"rtol": 1e-12} if precision == "fp64" else {"rtol": 1e-4, "atol": 1e-5}
    given = {"precision": precision, "dtype": dtype}
    models = [*members(one_score, "regressor", 2, **given), member(flat, "regressor", 2, **given)]
    made = EnsembleModel(way(models), rule="mean", weights=WEIGHTS).setDisagreementCol("apart")
    output = made.transform(data())
    assert output.columns == ["row", "x", "prediction", "apart"]
    assert output.schema["prediction"].dataType == T.DoubleType()
    prediction, apart = found(made, data(), "prediction", "apart")
    numbers, shares = np.stack([scores([model]).reshape(50) for model in models]), np.array(WEIGHTS) / sum(WEIGHTS)
    np.testing.assert_allclose(prediction, shares @ numbers, **exact)
    np.testing.assert_allclose(apart, np.sqrt(shares @ (numbers - shares @ numbers) ** 2), **exact)
    total = EnsembleModel(way(models), rule="sum", weights=[-1.0, 2.0, 0.1], intercept=5.0)
    np.testing.assert_allclose(found(total, data(), "prediction")[0], 5 + np.dot([-1, 2, 0.1], numbers), **exact)
    with pytest.raises(InvalidInput, match="disagreementCol is 'apart', but members of a sum"):
        total.setDisagreementCol("apart").transform(data())


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_arrays_stay_arrays(spark, way, precision):
    dtype, element = (torch.float64, T.DoubleType()) if precision == "fp64" else (torch.float32, T.FloatType())
    models = members(nets.Autoencoder, "estimator", precision=precision, dtype=dtype)
    mean = EnsembleModel(way(models), rule="mean", weights=WEIGHTS).setDisagreementCol("apart")
    assert mean.transform(data()).schema["prediction"].dataType.elementType == element
    arrays = scores(models)
    expected = np.tensordot(WEIGHTS, arrays, 1)
    prediction, apart = found(mean, data(), "prediction", "apart")
    np.testing.assert_allclose(prediction, expected / sum(WEIGHTS), rtol=1e-3, atol=1e-5)
    squares = ((arrays - expected / sum(WEIGHTS)) ** 2).mean(-1)
    np.testing.assert_allclose(apart, np.sqrt(np.dot(WEIGHTS, squares) / sum(WEIGHTS)), rtol=1e-3)
    total = EnsembleModel(way(models), rule="sum", weights=WEIGHTS)
    np.testing.assert_allclose(found(total, data(), "prediction")[0], expected, rtol=1e-3, atol=1e-5)


def test_single_numbers_of_estimators_stay_floats(spark, way):
    models = members(nets.column, "estimator", scalar=True)
    made = EnsembleModel(way(models), rule="mean").setDisagreementCol("apart")
    assert [field.dataType for field in made.transform(data()).schema][2:] == [T.FloatType(), T.DoubleType()]
    expected = scores(models)[..., 0].mean(0)
    np.testing.assert_allclose(found(made, data(), "prediction")[0], expected, rtol=1e-3, atol=1e-5)


# ---- plans -----------------------------------------------------------------------------------------------------------


def doubled(inputs, target):
    return tuple(2 * each for each in inputs), target


def plan(output):
    return output._jdf.queryExecution().executedPlan().toString()


def test_members_with_equal_inputs_share_one_function(spark):
    def functions(models):
        return plan(EnsembleModel(models, rule="soft").transform(data())).count("score(")

    alone = functions(members(count=1))
    assert functions(members()) == alone
    assert functions([*members(count=1), member(seed=3).setCollate(doubled)]) > alone
    output = EnsembleModel(chained(members()), rule="hard", numClasses=3).setDisagreementCol("apart").transform(data())
    assert "Exchange" not in plan(output)
    assert plan(output).count("ArrowEvalPython") <= 3
    for name in VECTORS:
        assert plan(output.select(name)).count("score(") <= plan(output).count("score(")


def test_members_with_different_inputs(spark):
    one, other = member(), member(seed=1).setInputCols(["y"])
    models = [one, other.copy(), other.setCollate(doubled)]
    (raw,) = found(EnsembleModel(models, rule="soft"), data(y=-X), "rawPrediction")
    expected = sum(softmax(scores([model], x)[0], -1) for model, x in ((one, X), (other, -X), (other, -2 * X)))
    np.testing.assert_allclose(raw, expected, rtol=1e-5)


# ---- members of other libraries --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(spark):
    """Rows with two classes, and fitted models of pyspark.ml and of this library."""
    rows = data(label=(X.sum(1) > 0.3).astype(np.float64), a=X[:, 0], b=X[:, 1])
    rows = rows.withColumn("features", array_to_vector("x")).cache()
    logistic = LogisticRegression(maxIter=5, featuresCol="joined")
    assembled = Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="joined"), logistic])
    trees = GBTClassifier(maxIter=2, maxDepth=2)
    models = [LogisticRegression(maxIter=5).fit(rows), assembled.fit(rows), assembled.fit(rows.where("row > 10"))]
    return rows, [*models, trees.fit(rows), member(one_score)]


@pytest.mark.parametrize("rule", ["soft", "hard"])
def test_members_of_any_library_vote(spark, mixed, rule):
    rows, models = mixed
    weights = [1.0, 2.0, 0.5, 1.5, 0.25]
    made = EnsembleModel(models, rule=rule, weights=weights).setDisagreementCol("apart")
    assert made.transform(rows).columns == [*rows.columns, *VECTORS, "apart"]
    raw, prediction, apart = found(made, rows, "rawPrediction", "prediction", "apart")
    each = [found(model, rows, "probability", "prediction") for model in models]
    chances = np.stack([chance if rule == "soft" else np.eye(2)[classes.astype(int)] for chance, classes in each])
    expected = np.tensordot(weights, chances, 1)
    np.testing.assert_allclose(raw, expected, rtol=1e-6)
    np.testing.assert_array_equal(prediction, expected.argmax(1))
    others = np.stack([classes for _, classes in each]) != prediction
    np.testing.assert_allclose(apart, np.dot(weights, others) / sum(weights), rtol=1e-10)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(PipelineModel([made]).transform(rows))
    labels = np.array([row["label"] for row in rows.orderBy("row").collect()])
    assert accuracy == pytest.approx((prediction == labels).mean())


def test_members_without_probabilities_vote_hard(spark, mixed):
    rows, models = mixed
    machine = LinearSVC(maxIter=3).fit(rows)
    with pytest.raises(InvalidInput, match="member 1 is a LinearSVCModel; expected a classifier with probabilities"):
        EnsembleModel([models[0], machine], rule="soft")
    (raw,) = found(EnsembleModel([machine, models[0]], rule="hard"), rows, "rawPrediction")
    each = [found(model, rows, "prediction")[0].astype(int) for model in (machine, models[0])]
    np.testing.assert_array_equal(raw, sum(np.eye(2)[classes] for classes in each))
    with pytest.raises(InvalidInput, match=r"hard votes expect EnsembleModel\(numClasses=...\)"):
        EnsembleModel(chained(members()), rule="hard").transform(data())
    with pytest.raises(Exception, match="a member predicts a class outside 0 to 1; set numClasses"):
        EnsembleModel(chained(members()), rule="hard", numClasses=2).transform(data().coalesce(1)).collect()


def test_members_may_be_searches_and_ensembles(spark, mixed):
    rows, models = mixed
    inner = EnsembleModel(models[:2], rule="soft").setDisagreementCol("inner")
    outer = EnsembleModel([inner, CrossValidatorModel(models[3])], rule="soft")
    assert outer.transform(rows).columns == [*rows.columns, *VECTORS]
    (probability,) = found(outer, rows, "probability")
    chances = [found(model, rows, "probability")[0] for model in (models[0], models[1], models[3])]
    np.testing.assert_allclose(probability, (chances[0] / 2 + chances[1] / 2 + chances[2]) / 2, rtol=1e-6)


def test_mean_of_numbers_of_any_library(spark, mixed):
    rows, _ = mixed
    models = [LinearRegression(maxIter=3, regParam=reg).fit(rows) for reg in (0.0, 0.5)]
    models.append(member(one_score, "regressor"))
    each = np.stack([found(model, rows, "prediction")[0] for model in models])
    made = EnsembleModel(models, rule="mean").setDisagreementCol("apart")
    prediction, apart = found(made, rows, "prediction", "apart")
    np.testing.assert_allclose(prediction, each.mean(0), rtol=1e-6)
    np.testing.assert_allclose(apart, each.std(0), rtol=1e-6)
    with pytest.raises(InvalidInput, match="some members predict numbers and others arrays"):
        EnsembleModel([*models, member(nets.Autoencoder, "estimator")], rule="mean").transform(rows)


# ---- copies and changes ----------------------------------------------------------------------------------------------


def test_copies_have_their_own_members_and_share_broadcasts(spark):
    models = members(one_score, "regressor")
    made = EnsembleModel(models, rule="sum", history=[{"member": 0}], report={"seconds": 1.0})
    copied = made.copy({made.predictionCol: "p", models[0].inputCols: ["y"]})
    assert (copied.uid, copied.getPredictionCol(), copied.weights) == (made.uid, "p", made.weights)
    assert (copied.history, copied.report) == (made.history, made.report)
    assert [model.getInputCols() for model in copied.models] == [["y"], ["x"], ["x"]]
    assert (made.getPredictionCol(), models[0].getInputCols()) == ("prediction", ["x"])
    made.transform(data(), {made.predictionCol: "p"})  # a copy's transform
    [(_, first)] = made._shipments.values()
    copied = made.copy()
    copied.transform(data())
    assert [shipment for _, shipment in copied._shipments.values()] == [first]
    each = np.stack([found(model, data(), "prediction")[0] for model in models])
    copied.models, copied.weights = copied.models[:2], copied.weights[:2]
    for changes, expected in (
        ({}, each[0] + each[1]),
        ({"weights": [2.0, 3.0], "intercept": 4.0}, 2 * each[0] + 3 * each[1] + 4),
        ({"models": models[1:]}, 2 * each[1] + 3 * each[2] + 4),
        ({"rule": "mean", "intercept": 0.0}, (2 * each[1] + 3 * each[2]) / 5),
    ):
        for name, value in changes.items():
            setattr(copied, name, value)
        np.testing.assert_allclose(found(copied, data(), "prediction")[0], expected, rtol=1e-5)
        np.testing.assert_allclose(found(made, data(), "prediction")[0], each.sum(0), rtol=1e-5)
    assert [shipment for _, shipment in made._shipments.values()] == [first]
    assert [shipment for _, shipment in copied._shipments.values()] != [first]


# ---- invalid arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": []}, "models is empty"),
        ({"rule": "median"}, "rule is 'median'; expected one of soft, hard, mean, sum"),
        ({"weights": [1.0]}, "weights has 1 numbers for 2 models"),
        ({"weights": [1.0, -1.0]}, r"weights is \[1.0, -1.0\]; expected finite numbers, at least 0, not all 0"),
        ({"weights": [0.0, 0.0], "rule": "mean"}, "at least 0, not all 0"),
        ({"weights": [1.0, float("nan")], "rule": "sum"}, "expected finite numbers, not all 0"),
        ({"models": ["model"]}, "member 0 is a str; expected a fitted model"),
        ({"models": [member(one_score, "regressor")]}, "member 0 is a TorchModel; expected a classifier with prob"),
        ({"models": [member(one_score, "regressor")], "rule": "hard"}, "expected a classifier for the rule 'hard'"),
    ],
)
def test_invalid_arguments_raise(given, message):
    with pytest.raises(InvalidInput, match=message):
        EnsembleModel(**{"models": members(count=2), "rule": "soft"} | given)


def test_ignored_arguments_warn(spark):
    with pytest.warns(UserWarning, match=r"intercept is 2.0, but only a sum uses it"):
        EnsembleModel(members(), rule="soft", intercept=2.0)
    made = EnsembleModel(members(one_score, "regressor"), rule="mean").setThresholds([0.5, 0.5])
    with pytest.warns(UserWarning, match="thresholds is set, but only votes use it; the rule 'mean' ignores it"):
        made.transform(data())
