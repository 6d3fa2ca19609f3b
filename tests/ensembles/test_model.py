"""Several models as one: in one pass of theirs, or one behind the other, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T
from scipy.special import softmax
from torch import nn

from sparkdl.data.columns import InputColumn
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
    """Members that score rows together, or one by one."""
    return (lambda models: models) if request.param == "together" else chained


# ---- votes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["soft", "hard"])
@pytest.mark.parametrize("factory", [linear, pytest.param(one_score, marks=pytest.mark.slow)])
def test_votes_are_what_numpy_counts(spark, way, rule, factory):
    models = members(factory)
    made = EnsembleModel(way(models), rule=rule, weights=WEIGHTS, numClasses=2 if factory is one_score else 3)
    made.setDisagreementCol("apart")
    raw, probability, prediction, apart = found(made, data(), *VECTORS, "apart")
    chances = probabilities(models)
    expected = votes(chances, rule, WEIGHTS)
    np.testing.assert_allclose(raw, expected, rtol=1e-5)
    np.testing.assert_allclose(probability, expected / sum(WEIGHTS), rtol=1e-5)
    np.testing.assert_array_equal(prediction, expected.argmax(1))
    others = chances.argmax(-1) != expected.argmax(1)
    np.testing.assert_allclose(apart, np.dot(WEIGHTS, others) / sum(WEIGHTS), rtol=1e-12)
    assert len(set(prediction)) == expected.shape[1]
    assert 0 < apart.max() < 1


def test_the_output_columns(spark, way):
    made = EnsembleModel(way(members()), rule="soft").setDisagreementCol("apart")
    output = made.transform(data())
    assert output.columns == ["row", "x", *VECTORS, "apart"]
    assert [field.dataType for field in output.schema][2:] == [VectorUDT(), VectorUDT(), T.DoubleType(), T.DoubleType()]
    made.setRawPredictionCol("").setProbabilityCol("").setPredictionCol("a.b c").setDisagreementCol("")
    assert made.transform(data()).columns == ["row", "x", "a.b c"]
    assert made.transform(data(), {made.predictionCol: "other"}).columns == ["row", "x", "other"]
    with pytest.raises(InvalidInput, match="there is a column 'x' already; drop it, or set predictionCol"):
        made.setPredictionCol("x").transform(data())


@pytest.mark.parametrize("rule", ["soft", "hard"])
def test_one_member_is_itself_and_so_are_equal_ones(spark, way, rule):
    alone = member(nets.scores)
    expected = dict(zip(VECTORS, found(alone, data(), *VECTORS), strict=True))
    for count, weights in ((1, [1.0]), (1, [0.3]), (4, None)):
        made = EnsembleModel(way([alone] * count), rule=rule, weights=weights, numClasses=3)
        _, probability, prediction = found(made.setDisagreementCol("apart"), data(), *VECTORS)
        np.testing.assert_array_equal(prediction, expected["prediction"])
        if rule == "soft":
            np.testing.assert_allclose(probability, expected["probability"], rtol=1e-6)
        assert not found(made, data(), "apart")[0].any()


def test_two_members_are_the_mean_of_their_probabilities(spark, way):
    models = members(count=2)
    (probability,) = found(EnsembleModel(way(models), rule="soft"), data(), "probability")
    each = [found(model, data(), "probability")[0] for model in models]
    np.testing.assert_allclose(probability, np.mean(each, 0), rtol=1e-6)


def certain(*classes):
    """Members that always predict these classes, with the same certainty."""
    made = []
    for index in classes:
        module = linear()
        module.weight.data.zero_()
        module.bias.data = 3 * torch.eye(3)[index]
        made.append(TorchModel(factory=linear, weights=pack(module), kind="classifier").setInputCols(["x"]))
    return made


@pytest.mark.parametrize("rule", ["soft", pytest.param("hard", marks=pytest.mark.slow)])
def test_a_tie_goes_to_the_smallest_class(spark, way, rule):
    for classes, winner in (((2, 1), 1), ((1, 2), 1), ((2, 0), 0)):
        made = EnsembleModel(way(certain(*classes)), rule=rule, weights=[0.1, 0.1], numClasses=3)
        assert set(found(made, data(), "prediction")[0]) == {winner}


def test_members_of_weight_0_are_not_asked(spark, way):
    models = members()
    broken = member().setInputCols(["not there"])
    made = EnsembleModel(way([*models, broken]), rule="soft", weights=[*WEIGHTS, 0.0])
    (raw,) = found(made, data(), "rawPrediction")
    np.testing.assert_allclose(raw, votes(probabilities(models), "soft", WEIGHTS), rtol=1e-5)


@pytest.mark.parametrize("rule", ["soft", "hard"])
def test_a_score_that_is_no_number_is_no_prediction(spark, way, rule):
    x = X.copy()
    x[7, 1] = np.nan
    made = EnsembleModel(way(members()), rule=rule, numClasses=3).setDisagreementCol("apart")
    for values in found(made, frame({"row": np.arange(50), "x": x}), *VECTORS, "apart"):
        assert np.isnan(values[7]).all()
        assert np.isfinite(np.delete(values, 7, 0)).all()


@pytest.mark.parametrize("rule", ["soft", "hard"])
@pytest.mark.parametrize("thresholds", [[0.2, 0.5, 0.9], pytest.param([0.9, 0.0, 0.9], marks=pytest.mark.slow)])
def test_thresholds_are_those_of_pyspark(spark, way, rule, thresholds):
    models = members()
    made = EnsembleModel(way(models), rule=rule, numClasses=3).setThresholds(thresholds).setDisagreementCol("apart")
    prediction, apart = found(made, data(), "prediction", "apart")
    expected = votes(probabilities(models), rule, [1 / 3] * 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(expected == 0, 0, expected / thresholds)
    np.testing.assert_array_equal(prediction, scaled.argmax(1))
    others = probabilities(models).argmax(-1) != prediction
    np.testing.assert_allclose(apart, others.mean(0), atol=1e-12)
    assert (prediction != expected.argmax(1)).any()


def test_thresholds_of_members_count_where_their_predictions_do(spark):
    models = [model.setThresholds([1.0, 1.0, 0.0]) for model in members()]
    (prediction,) = found(EnsembleModel(models, rule="hard", numClasses=3), data(), "prediction")
    assert set(prediction) == {2}
    (raw,) = found(EnsembleModel(models, rule="soft"), data(), "rawPrediction")
    np.testing.assert_allclose(raw, probabilities(models).sum(0), rtol=1e-5)


def test_thresholds_of_another_number_of_classes_are_refused(spark, way):
    made = EnsembleModel(way(members(count=1)), rule="soft").setThresholds([0.5, 0.5])
    with pytest.raises(Exception, match="thresholds has 2 numbers"):
        made.transform(data().coalesce(1)).collect()


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_mean_of_regressors(spark, way, precision):
    dtype = torch.float64 if precision == "fp64" else torch.float32
    models = members(one_score, "regressor", precision=precision, dtype=dtype)
    made = EnsembleModel(way(models), rule="mean", weights=WEIGHTS).setDisagreementCol("apart")
    output = made.transform(data())
    assert output.columns == ["row", "x", "prediction", "apart"]
    assert output.schema["prediction"].dataType == T.DoubleType()
    prediction, apart = found(made, data(), "prediction", "apart")
    numbers, shares = scores(models)[..., 0], np.array(WEIGHTS) / sum(WEIGHTS)
    exact = {"rtol": 1e-12} if precision == "fp64" else {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(prediction, shares @ numbers, **exact)
    np.testing.assert_allclose(apart, np.sqrt(shares @ (numbers - shares @ numbers) ** 2), **exact)


def test_the_sum_of_regressors(spark, way):
    models = members(one_score, "regressor")
    made = EnsembleModel(way(models), rule="sum", weights=[-1.0, 2.0, 0.1], intercept=5.0)
    (prediction,) = found(made, data(), "prediction")
    np.testing.assert_allclose(prediction, 5 + np.dot([-1, 2, 0.1], scores(models)[..., 0]), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match="disagreementCol is 'apart', but the members of a sum"):
        made.setDisagreementCol("apart").transform(data())


@pytest.mark.parametrize("rule", [pytest.param("mean", marks=pytest.mark.slow), "sum"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp64", marks=pytest.mark.slow)])
def test_arrays_stay_arrays(spark, way, rule, precision):
    dtype, element = (torch.float64, T.DoubleType()) if precision == "fp64" else (torch.float32, T.FloatType())
    models = members(nets.Autoencoder, "estimator", precision=precision, dtype=dtype)
    made = EnsembleModel(way(models), rule=rule, weights=WEIGHTS)
    assert made.transform(data()).schema["prediction"].dataType.elementType == element
    arrays = scores(models)
    expected = np.tensordot(WEIGHTS, arrays, 1) / (sum(WEIGHTS) if rule == "mean" else 1)
    np.testing.assert_allclose(found(made, data(), "prediction")[0], expected, rtol=1e-3, atol=1e-5)
    if rule == "mean":
        (apart,) = found(made.setDisagreementCol("apart"), data(), "apart")
        squares = ((arrays - expected) ** 2).mean(-1)
        np.testing.assert_allclose(apart, np.sqrt(np.dot(WEIGHTS, squares) / sum(WEIGHTS)), rtol=1e-3)


def flat():
    return nn.Sequential(linear(1), nn.Flatten(0))


def test_regressors_with_a_dimension_of_one_and_without(spark, way):
    models = [member(one_score, "regressor"), member(flat, "regressor", seed=1)]
    each = [found(model, data(), "prediction")[0] for model in models]
    prediction, apart = found(
        EnsembleModel(way(models), rule="mean").setDisagreementCol("apart"), data(), "prediction", "apart"
    )
    np.testing.assert_allclose(prediction, np.mean(each, 0), rtol=1e-6)
    np.testing.assert_allclose(apart, np.std(each, 0), rtol=1e-4, atol=1e-6)


def test_outputs_of_one_number_stay_floats(spark, way):
    models = members(nets.column, "estimator", scalar=True)
    made = EnsembleModel(way(models), rule="mean")
    assert made.transform(data()).schema["prediction"].dataType == T.FloatType()
    expected = scores(models)[..., 0].mean(0)
    np.testing.assert_allclose(found(made, data(), "prediction")[0], expected, rtol=1e-3, atol=1e-5)
    made.setDisagreementCol("apart")
    assert [field.dataType for field in made.transform(data()).schema][2:] == [T.FloatType(), T.DoubleType()]


def test_thresholds_of_numbers_are_ignored_with_a_warning(spark):
    made = EnsembleModel(members(one_score, "regressor"), rule="mean").setThresholds([0.5, 0.5])
    with pytest.warns(UserWarning, match="thresholds are for votes; those of this mean are ignored"):
        made.transform(data())


# ---- what the members read -------------------------------------------------------------------------------------------


def test_several_inputs_and_rows_of_several_lengths(spark, way):
    random = np.random.default_rng(1)
    images, kinds = random.normal(size=(50, 2, 2)), random.integers(0, 4, 50)
    rows = data(image=images, kind=kinds, price=X[:, 0])
    models = [model.setInputCols(["image", "kind", "price"]) for model in members(nets.Scaled, "regressor")]
    each = [found(model, rows, "prediction")[0] for model in models]
    (prediction,) = found(EnsembleModel(way(models), rule="mean"), rows, "prediction")
    np.testing.assert_allclose(prediction, np.mean(each, 0), rtol=1e-4, atol=1e-3)


def bag():
    return nn.EmbeddingBag(10, 3, mode="sum")


def test_rows_of_several_lengths(spark, way):
    rows = spark.range(50).selectExpr("id as row", "transform(sequence(0, id % 4), i -> (i * 3 + id) % 10) as x")
    models = [model.setColumnSpecs([InputColumn("x", ragged="offsets")]) for model in members(bag)]
    each = [found(model, rows, "probability")[0] for model in models]
    (probability,) = found(EnsembleModel(way(models), rule="soft"), rows, "probability")
    np.testing.assert_allclose(probability, np.mean(each, 0), rtol=1e-5)


def test_members_of_several_architectures(spark):
    models = [member(linear), member(nets.scores, seed=1), member(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()))]
    (raw,) = found(EnsembleModel(models, rule="soft"), data(), "rawPrediction")
    np.testing.assert_allclose(raw, probabilities(models).sum(0), rtol=1e-5)


def doubled(inputs, target):
    return tuple(2 * each for each in inputs), target


def plan(output):
    return output._jdf.queryExecution().executedPlan().toString()


def test_members_that_read_the_same_are_one_function(spark):
    def functions(models):
        return plan(EnsembleModel(models, rule="soft").transform(data())).count("score(")

    # Each function is named once where it is called and once in the columns that come of it.
    alone, three = functions(members(count=1)), functions(members())
    assert three == alone
    other = member(seed=3).setCollate(doubled)
    assert functions([*members(count=1), other]) > alone


def test_members_with_inputs_of_their_own(spark):
    one, other = member(), member(seed=1).setInputCols(["y"])
    rows = data(y=-X)
    (raw,) = found(EnsembleModel([one, other.copy(), other.setCollate(doubled)], rule="soft"), rows, "rawPrediction")
    expected = sum(softmax(scores([model], x)[0], -1) for model, x in ((one, X), (other, -X), (other, -2 * X)))
    np.testing.assert_allclose(raw, expected, rtol=1e-5)


def test_nothing_is_shuffled_and_nothing_runs_twice(spark):
    output = EnsembleModel(chained(members()), rule="hard", numClasses=3).setDisagreementCol("apart").transform(data())
    assert "Exchange" not in plan(output)
    assert plan(output).count("ArrowEvalPython") <= 3
    for name in VECTORS:
        assert plan(output.select(name)).count("score(") <= plan(output).count("score(")


def test_no_rows_are_no_rows(spark, way):
    made = EnsembleModel(way(members()), rule="soft").setDisagreementCol("apart")
    assert made.transform(data().where("row < 0")).collect() == []
    assert len(made.transform(data().where("row = 7").repartition(4)).collect()) == 1
