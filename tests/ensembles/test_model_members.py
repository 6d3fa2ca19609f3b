"""Members of any library, and an ensemble's model as a model like any other."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import GBTClassifier, LinearSVC, LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidatorModel

from sparkdl.ensembles.model import EnsembleModel
from sparkdl.errors import InvalidInput
from tests.ensembles.voters import VECTORS, WEIGHTS, X, chained, data, found, member, members, one_score
from tests.ml import nets

pytestmark = pytest.mark.slow

# ---- members of other libraries --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(spark):
    """Rows with two classes, and models of pyspark.ml and of this library that were fitted to them."""
    rows = data(label=(X.sum(1) > 0.3).astype(np.float64), a=X[:, 0], b=X[:, 1])
    rows = rows.withColumn("features", array_to_vector("x")).cache()
    assembled = Pipeline(
        stages=[
            VectorAssembler(inputCols=["a", "b"], outputCol="joined"),
            LogisticRegression(maxIter=5, featuresCol="joined"),
        ]
    )
    fitted = [
        LogisticRegression(maxIter=5).fit(rows),
        assembled.fit(rows),
        assembled.fit(rows.where("row > 10")),
        GBTClassifier(maxIter=2, maxDepth=2).fit(rows),
        member(one_score),
    ]
    return rows, fitted


@pytest.mark.parametrize("rule", ["soft", pytest.param("hard", marks=pytest.mark.slow)])
def test_members_of_any_library_vote(spark, mixed, rule):
    rows, models = mixed
    weights = [1.0, 2.0, 0.5, 1.5, 0.25]
    made = EnsembleModel(models, rule=rule, weights=weights).setDisagreementCol("apart")
    output = made.transform(rows)
    assert output.columns == [*rows.columns, *VECTORS, "apart"]
    raw, prediction, apart = found(made, rows, "rawPrediction", "prediction", "apart")
    each = [found(model, rows, "probability", "prediction") for model in models]
    chances = np.stack([chance if rule == "soft" else np.eye(2)[classes.astype(int)] for chance, classes in each])
    expected = np.tensordot(weights, chances, 1)
    np.testing.assert_allclose(raw, expected, rtol=1e-6)
    np.testing.assert_array_equal(prediction, expected.argmax(1))
    others = np.stack([classes for _, classes in each]) != prediction
    np.testing.assert_allclose(apart, np.dot(weights, others) / sum(weights), rtol=1e-10)


def test_members_without_probabilities_vote_hard(spark, mixed):
    rows, models = mixed
    machine = LinearSVC(maxIter=3).fit(rows)
    with pytest.raises(InvalidInput, match="member 1 is a LinearSVCModel; expected a classifier with probabilities"):
        EnsembleModel([models[0], machine], rule="soft")
    (raw,) = found(EnsembleModel([machine, models[0]], rule="hard"), rows, "rawPrediction")
    each = [found(model, rows, "prediction")[0].astype(int) for model in (machine, models[0])]
    np.testing.assert_array_equal(raw, sum(np.eye(2)[classes] for classes in each))


def test_members_may_be_searches_and_ensembles(spark, mixed):
    rows, models = mixed
    inner = EnsembleModel(models[:2], rule="soft").setDisagreementCol("inner")
    outer = EnsembleModel([inner, CrossValidatorModel(models[3])], rule="soft")
    assert outer.transform(rows).columns == [*rows.columns, *VECTORS]
    (probability,) = found(outer, rows, "probability")
    chances = [found(model, rows, "probability")[0] for model in (models[0], models[1], models[3])]
    np.testing.assert_allclose(probability, (chances[0] / 2 + chances[1] / 2 + chances[2]) / 2, rtol=1e-6)


def test_numbers_of_any_library(spark, mixed):
    rows, _ = mixed
    models = [LinearRegression(maxIter=3, regParam=reg).fit(rows) for reg in (0.0, 0.5)]
    models.append(member(one_score, "regressor"))
    each = np.stack([found(model, rows, "prediction")[0] for model in models])
    made = EnsembleModel(models, rule="mean").setDisagreementCol("apart")
    prediction, apart = found(made, rows, "prediction", "apart")
    np.testing.assert_allclose(prediction, each.mean(0), rtol=1e-6)
    np.testing.assert_allclose(apart, each.std(0), rtol=1e-6)
    array = member(nets.Autoencoder, "estimator")
    with pytest.raises(InvalidInput, match="some members predict numbers and others arrays"):
        EnsembleModel([*models, array], rule="mean").transform(rows)


def test_hard_votes_need_the_number_of_classes(spark):
    models = chained(members())
    with pytest.raises(InvalidInput, match=r"expected EnsembleModel\(numClasses=...\) for hard votes"):
        EnsembleModel(models, rule="hard").transform(data())
    with pytest.raises(Exception, match="a member predicts a class beyond the 2 that there are"):
        EnsembleModel(models, rule="hard", numClasses=2).transform(data().coalesce(1)).collect()


# ---- a model like any other ------------------------------------------------------------------------------------------


def test_a_pipeline_and_an_evaluator(spark, mixed):
    rows, models = mixed
    made = EnsembleModel(models, rule="soft")
    (expected,) = found(made, rows, "prediction")
    (prediction,) = found(PipelineModel([made]), rows, "prediction")
    np.testing.assert_array_equal(prediction, expected)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(made.transform(rows))
    labels = np.array([row["label"] for row in rows.orderBy("row").collect()])
    assert accuracy == pytest.approx((expected == labels).mean())


def test_a_copy_has_copies_of_its_members(spark):
    models = members()
    made = EnsembleModel(models, rule="soft", weights=WEIGHTS, history=[{"member": 0}], report={"seconds": 1.0})
    copied = made.copy({made.predictionCol: "p", models[0].inputCols: ["y"]})
    assert (copied.uid, copied.getPredictionCol(), copied.weights) == (made.uid, "p", WEIGHTS)
    assert (copied.history, copied.report) == (made.history, made.report)
    assert [model.getInputCols() for model in copied.models] == [["y"], ["x"], ["x"]]
    assert (made.getPredictionCol(), models[0].getInputCols()) == ("prediction", ["x"])


def numbers(model):
    return found(model, data(), "prediction")[0]


def test_what_is_changed_is_what_scores(spark):
    models = members(one_score, "regressor")
    made = EnsembleModel(models, rule="sum")
    each, copied = np.stack([numbers(model) for model in models]), made.copy()
    np.testing.assert_allclose(numbers(made), each.sum(0), rtol=1e-5)
    copied.models, copied.weights = copied.models[:2], copied.weights[:2]
    np.testing.assert_allclose(numbers(copied), each[:2].sum(0), rtol=1e-5)
    np.testing.assert_allclose(numbers(made), each.sum(0), rtol=1e-5)
    for name, value, expected in (
        ("weights", [2.0, 3.0], 2 * each[0] + 3 * each[1]),
        ("intercept", 4.0, 2 * each[0] + 3 * each[1] + 4),
        ("models", models[1:], 2 * each[1] + 3 * each[2] + 4),
    ):
        setattr(copied, name, value)
        np.testing.assert_allclose(numbers(copied), expected, rtol=1e-5)
    copied.rule, copied.intercept = "mean", 0.0
    np.testing.assert_allclose(numbers(copied), (2 * each[1] + 3 * each[2]) / 5, rtol=1e-5)
    np.testing.assert_allclose(numbers(made), each.sum(0), rtol=1e-5)


def test_copies_share_what_has_been_shipped(spark):
    made = EnsembleModel(members(), rule="soft")
    rows = data()
    made.transform(rows, {made.predictionCol: "p"})  # that is a copy's transform
    [(_, first)] = made._shipments.values()
    copied = made.copy()
    copied.transform(rows)
    made.transform(rows)
    assert [shipment for _, shipment in copied._shipments.values()] == [first]
    copied.weights = WEIGHTS
    copied.transform(rows)
    copied.copy().transform(rows)
    assert [shipment for _, shipment in made._shipments.values()] == [first]
    assert [shipment for _, shipment in copied._shipments.values()] != [first]


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
        ({"models": [member(one_score, "regressor")], "rule": "hard"}, "expected a classifier, for the rule is 'hard'"),
    ],
)
def test_what_makes_no_ensemble_is_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        EnsembleModel(**{"models": members(count=2), "rule": "soft"} | given)


def test_an_intercept_of_votes_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match=r"intercept is 2.0, which only a sum has"):
        EnsembleModel(members(), rule="soft", intercept=2.0)
