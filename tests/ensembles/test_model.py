"""Several models as one, in one pass of theirs or one after the other, with the same results."""

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import GBTClassifier, LinearSVC, LogisticRegression
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.tuning import CrossValidatorModel
from pyspark.sql import functions as F
from pyspark.sql import types as T
from scipy.special import expit, softmax
from torch import nn

from sparkdl import EnsembleModel, InvalidInput, TorchModel
from sparkdl.io.weights import pack
from tests.ensembles.fakes import VECTORS, linear, member, members, outputs
from tests.ml import nets
from tests.ml.test_udf import X, plan
from tests.ml.test_udf import features as data

pytestmark = pytest.mark.slow

WEIGHTS = [1.0, 0.5, 1.25]


def one_score():
    return linear(1)


def chained(models):
    """The same members, which then score rows one after the other."""
    return [PipelineModel([model]) for model in models]


def scores(models, x=X):
    with torch.no_grad():
        return np.stack([model.module().double()(torch.from_numpy(x)).numpy() for model in models])


def probabilities(models):
    raw = scores(models)
    chance = expit(raw[..., 0])
    return np.stack([1 - chance, chance], -1) if raw.shape[-1] == 1 else softmax(raw, -1)


def both_ways(models, names, rows, **given):
    """Output columns of members that score rows together, which equal those of members one after the other."""
    results = []
    for each in (models, chained(models)):
        made = EnsembleModel(each, **{name: value for name, value in given.items() if name != "thresholds"})
        made.setThresholds(given.get("thresholds")).setDisagreementCol("apart" if "apart" in names else "")
        results.append((outputs(made, rows, *names), made.transform(rows).schema))
        if "apart" not in names:
            continue
        predicted = made.predict(rows.toPandas())
        assert [*predicted] == ["prediction", *(["probability", "rawPrediction"] if len(names) > 2 else []), "apart"]
        for name, values in zip(names, results[-1][0], strict=True):
            np.testing.assert_allclose(np.stack([*predicted[name]]), values, rtol=1e-6, atol=1e-7)
    (together, schema), (apart, other) = results
    for one, another in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-5, atol=1e-6)
    assert schema.simpleString() == other.simpleString()
    return together, schema


@pytest.mark.parametrize(
    ("rule", "factory", "thresholds"),
    [
        ("soft", linear, None),
        ("hard", linear, None),
        ("soft", one_score, None),
        ("hard", one_score, None),
        ("soft", linear, [0.2, 0.5, 0.9]),
        ("hard", linear, [0.9, 0.0, 0.9]),
    ],
)
def test_votes_are_equal_both_ways(spark, rule, factory, thresholds):
    models, x = members(factory), X.copy()
    x[7, 1] = np.nan  # no member has a prediction of this row
    models.append(member().setInputCols(["missing"]))  # members of weight 0 do not run
    classes = 2 if factory is one_score else 3
    given = {"rule": rule, "weights": [*WEIGHTS, 0.0], "numClasses": classes, "thresholds": thresholds}
    columns, _ = both_ways(models, [*VECTORS, "apart"], data(x=x), **given)
    assert all(np.isnan(values[7]).all() for values in columns)
    raw, probability, prediction, apart = (np.delete(values, 7, 0) for values in columns)
    chances = np.delete(probabilities(models[:3]), 7, 1)
    each = np.eye(classes)[chances.argmax(-1)]
    expected = np.tensordot(WEIGHTS, each if rule == "hard" else chances, 1)
    np.testing.assert_allclose(raw, expected, rtol=1e-5)
    np.testing.assert_allclose(probability, expected / sum(WEIGHTS), rtol=1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):  # in pyspark, a threshold of 0 wins unless the vote is 0
        scaled = expected if thresholds is None else np.where(expected == 0, 0, expected / thresholds)
    np.testing.assert_array_equal(prediction, scaled.argmax(1))
    assert (prediction != expected.argmax(1)).any() == (thresholds is not None)
    others = chances.argmax(-1) != prediction
    np.testing.assert_allclose(apart, np.dot(WEIGHTS, others) / sum(WEIGHTS), atol=1e-12)
    assert apart.max() > 0


@pytest.mark.parametrize(
    ("rule", "factory", "thresholds"),
    [("soft", linear, [0.2, 0.5, 0.9]), ("soft", one_score, None), ("hard", linear, None), ("mean", one_score, None)],
)
def test_each_row_has_its_own_voters(spark, rule, factory, thresholds):
    models = members(factory, "regressor" if rule == "mean" else "classifier")
    classes = 2 if factory is one_score else 3
    weights = np.array(WEIGHTS)[:, None] * (np.arange(50) % 4 != np.arange(3)[:, None])
    each = scores(models)[..., 0] if rule == "mean" else probabilities(models)
    if rule == "mean":
        expected = (weights * each).sum(0) / weights.sum(0)
    else:
        each = np.eye(classes)[each.argmax(-1)] if rule == "hard" else each
        expected = ((weights[..., None] * each).sum(0) / (thresholds or 1)).argmax(1)
    voters = [F.col("row") % 4 != at for at in range(3)]
    for group in (models, chained(models)):
        made = EnsembleModel(group, rule=rule, weights=WEIGHTS, numClasses=classes).setThresholds(thresholds)
        rows = made.setDisagreementCol("apart").with_votes(data(), voters, "votes", ["row"])
        assert rows.columns == ["row", "votes"]
        np.testing.assert_allclose(rows.orderBy("row").toPandas()["votes"], expected, rtol=1e-5)


@pytest.mark.parametrize("rule", ["soft", "hard"])
def test_smallest_class_wins_a_tie(spark, rule):
    module = linear()
    module.weight.data.zero_()
    models = []
    for index in (2, 1):  # members that always predict this class, equally certain
        module.bias.data = 3 * torch.eye(3)[index]
        models.append(TorchModel(factory=linear, weights=pack(module), kind="classifier").setInputCols(["x"]))
    ((prediction,), _) = both_ways(models, ["prediction"], data(), rule=rule, weights=[0.1, 0.1], numClasses=3)
    assert set(prediction) == {1}


def test_thresholds_of_members_count_in_hard_votes(spark):
    models = [model.setThresholds([1.0, 1.0, 0.0]) for model in members()]
    (prediction,) = outputs(EnsembleModel(models, rule="hard", numClasses=3), data(), "prediction")
    assert set(prediction) == {2}
    (raw,) = outputs(EnsembleModel(models, rule="soft"), data(), "rawPrediction")
    np.testing.assert_allclose(raw, probabilities(models).sum(0), rtol=1e-5)


FLOATS, DOUBLES = (T.ArrayType(kind()) for kind in (T.FloatType, T.DoubleType))


def flat():
    return nn.Sequential(linear(1), nn.Flatten(0))


@pytest.mark.parametrize(
    ("factories", "given", "types"),
    [
        ([one_score, one_score, flat], {"kind": "regressor"}, {"fp32": T.DoubleType(), "fp64": T.DoubleType()}),
        (3 * [nets.Autoencoder], {"kind": "estimator"}, {"fp32": FLOATS, "fp64": DOUBLES}),
        (3 * [nets.column], {"kind": "estimator", "output": [1]}, {"fp32": T.FloatType()}),
    ],
)
def test_means_and_sums_are_equal_both_ways(spark, factories, given, types):
    for precision, expected_type in types.items():
        given |= {"precision": precision, "dtype": torch.float64 if precision == "fp64" else torch.float32}
        exact = {"rtol": 1e-12} if precision == "fp64" else {"rtol": 1e-3, "atol": 1e-5}
        models = [member(factory, seed=seed, **given) for seed, factory in enumerate(factories)]
        numbers = np.stack([scores([model]).reshape(50, -1) for model in models])
        shares = np.array(WEIGHTS) / sum(WEIGHTS)
        (prediction, apart), schema = both_ways(models, ["prediction", "apart"], data(), rule="mean", weights=WEIGHTS)
        assert [field.dataType.simpleString() for field in schema][2:] == [expected_type.simpleString(), "double"]
        expected = np.tensordot(shares, numbers, 1)
        np.testing.assert_allclose(prediction.reshape(50, -1), expected, **exact)
        np.testing.assert_allclose(apart, np.sqrt(shares @ ((numbers - expected) ** 2).mean(-1)), **exact)
        weights = [-1.0, 2.0, 0.1]
        ((total,), _) = both_ways(models, ["prediction"], data(), rule="sum", weights=weights, intercept=5.0)
        if factories[0] is nets.Autoencoder:
            models[0].setLabelCol("x").evaluated = {"loss": nn.L1Loss(), "metrics": {}}
            made = EnsembleModel(models, rule="mean", weights=WEIGHTS).setDisagreementCol("apart")
            assert made.evaluate(data()).loss == pytest.approx(np.abs(X - expected).mean())
        np.testing.assert_allclose(total.reshape(50, -1), 5 + np.tensordot(weights, numbers, 1), **exact)


@pytest.mark.parametrize("way", [list, chained])
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
    total = EnsembleModel(way(members(one_score, "regressor")), rule="sum").setDisagreementCol("apart")
    with pytest.raises(InvalidInput, match="disagreementCol is 'apart', but members of a sum"):
        total.transform(data())
    with pytest.raises(Exception, match="thresholds has 2 numbers"):
        EnsembleModel(way(members()), rule="soft").setThresholds([1.0, 1.0]).transform(data().coalesce(1)).collect()


# ---- plans -----------------------------------------------------------------------------------------------------------


def doubled(inputs, target):
    return tuple(2 * each for each in inputs), target


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
    (raw,) = outputs(EnsembleModel(models, rule="soft"), data(y=-X), "rawPrediction")
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
    raw, prediction, apart = outputs(made, rows, "rawPrediction", "prediction", "apart")
    each = [outputs(model, rows, "probability", "prediction") for model in models]
    chances = np.stack([chance if rule == "soft" else np.eye(2)[classes.astype(int)] for chance, classes in each])
    expected = np.tensordot(weights, chances, 1)
    np.testing.assert_allclose(raw, expected, rtol=1e-6)
    np.testing.assert_array_equal(prediction, expected.argmax(1))
    others = np.stack([classes for _, classes in each]) != prediction
    np.testing.assert_allclose(apart, np.dot(weights, others) / sum(weights), rtol=1e-10)
    table = made.predict(rows.withColumn("features", F.col("x")).toArrow())
    np.testing.assert_array_equal(table["apart"], apart)
    assert made.evaluate(rows).accuracy == np.mean(prediction == [row["label"] for row in rows.collect()])


def test_members_without_probabilities_vote_hard(spark, mixed):
    rows, models = mixed
    machine = LinearSVC(maxIter=3).fit(rows)
    with pytest.raises(InvalidInput, match="member 1 is a LinearSVCModel; expected a classifier with probabilities"):
        EnsembleModel([models[0], machine], rule="soft")
    (raw,) = outputs(EnsembleModel([machine, models[0]], rule="hard"), rows, "rawPrediction")
    each = [outputs(model, rows, "prediction")[0].astype(int) for model in (machine, models[0])]
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
    (probability,) = outputs(outer, rows, "probability")
    chances = [outputs(model, rows, "probability")[0] for model in (models[0], models[1], models[3])]
    np.testing.assert_allclose(probability, (chances[0] / 2 + chances[1] / 2 + chances[2]) / 2, rtol=1e-6)
    numbers = [member(one_score, "regressor"), member(nets.Autoencoder, "estimator")]
    with pytest.raises(InvalidInput, match="some members predict numbers and others arrays"):
        EnsembleModel(chained(numbers), rule="mean").transform(rows)


def test_labels_of_members(spark):
    """Those that the members' loss ignores are left out; members with several label columns need the ensemble's."""
    models, rows = [one.setLabelCol("y") for one in members(ignored=2)], data(y=np.arange(50) % 3)
    found = EnsembleModel(models, rule="soft").evaluate(rows)
    assert (found.rows, found.ignored) == (34, 16)
    made = EnsembleModel([*models, member()], rule="soft")
    with pytest.raises(InvalidInput, match=r"labelCol of the members is \['label', 'y'\]; expected model.setLabelCol"):
        made.evaluate(rows)
    with pytest.raises(InvalidInput, match="there is no label column 'gone'"):
        made.setLabelCol("gone").evaluate(rows)
    assert made.setLabelCol("y").evaluate(rows).rows == 34


def test_copies_have_their_own_members_and_share_broadcasts(spark):
    models = members(one_score, "regressor")
    made = EnsembleModel(models, rule="sum", history=[{"member": 0}], report={"seconds": 1.0})
    copied = made.copy({made.predictionCol: "p", models[0].inputCols: ["y"]})
    assert (copied.uid, copied.getPredictionCol(), copied.weights) == (made.uid, "p", made.weights)
    assert (copied.history, copied.report) == (made.history, made.report)
    assert [model.getInputCols() for model in copied.models] == [["y"], ["x"], ["x"]]
    assert (made.getPredictionCol(), models[0].getInputCols()) == ("prediction", ["x"])
    made.transform(data(), {made.predictionCol: "p"})  # a copy's transform
    [(_, first)] = made._broadcasts.values()
    copied = made.copy()
    copied.transform(data())
    assert [broadcast for _, broadcast in copied._broadcasts.values()] == [first]
    each = np.stack([outputs(model, data(), "prediction")[0] for model in models])
    copied.models, copied.weights = copied.models[:2], copied.weights[:2]
    for changes, expected in (
        ({}, each[0] + each[1]),
        ({"weights": [2.0, 3.0], "intercept": 4.0}, 2 * each[0] + 3 * each[1] + 4),
        ({"models": models[1:]}, 2 * each[1] + 3 * each[2] + 4),
        ({"rule": "mean", "intercept": 0.0}, (2 * each[1] + 3 * each[2]) / 5),
    ):
        for name, value in changes.items():
            setattr(copied, name, value)
        np.testing.assert_allclose(outputs(copied, data(), "prediction")[0], expected, rtol=1e-5)
        np.testing.assert_allclose(outputs(made, data(), "prediction")[0], each.sum(0), rtol=1e-5)
    assert [broadcast for _, broadcast in made._broadcasts.values()] == [first]
    assert [broadcast for _, broadcast in copied._broadcasts.values()] != [first]


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
