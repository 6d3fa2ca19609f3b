"""Boosting as an estimator: against scikit-learn's, with PyTorch members, after failures, and on bad input."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, MultilayerPerceptronClassifier
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import LinearRegression
from sklearn.datasets import load_wine
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier as Tree

from sparkdl import TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ensembles.boosting import estimator as boosting
from sparkdl.ensembles.boosting.estimator import Boosting
from sparkdl.ensembles.members.driver_fits import fit_on_driver
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.bootstrap import member_seed
from sparkdl.errors import InvalidInput
from tests.ml import nets
from tests.rounds.data import adult
from tests.sessions import frame

STUMP = {"maxDepth": 1, "maxBins": 256}


@pytest.fixture(scope="module")
def wine(spark):
    x, y = load_wine(return_X_y=True)
    scaled = (x - x.mean(0)) / x.std(0)
    arrays = {"x": x, "few": scaled[:, [0, 6, 9]], "label": y.astype(np.float64), "w": np.linspace(0.5, 2.0, len(y))}
    rows = frame(arrays).select("label", "w", "few", array_to_vector("x").alias("features")).repartition(3).cache()
    rows.count()  # executors hold them from their first use on, whichever test that would be
    return rows


def persistent(rows):
    """What executors hold, by number."""
    return set(rows.sparkSession.sparkContext._jsc.getPersistentRDDs().keySet())


# ---- the same as others have it ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_three_classes_are_boosted_as_by_scikit_learn(wine, weighted):
    x, y = load_wine(return_X_y=True)
    weights = np.linspace(0.5, 2.0, len(y)) if weighted else None
    base = DecisionTreeClassifier(**STUMP, weightCol="w") if weighted else DecisionTreeClassifier(**STUMP)
    fitted = Boosting(base=base, numModels=6, learningRate=0.5).fit(wine)
    expected = AdaBoostClassifier(Tree(max_depth=1), n_estimators=6, learning_rate=0.5).fit(x, y, weights)
    assert [row["error"] for row in fitted.history] == pytest.approx(list(expected.estimator_errors_), rel=1e-9)
    assert fitted.weights == pytest.approx(list(expected.estimator_weights_), rel=1e-9)
    assert (fitted.rule, fitted.numClasses, len(fitted.models)) == ("hard", 3, 6)
    right = fitted.transform(wine).where("prediction = label").count()
    assert right / len(y) == pytest.approx(expected.score(x, y), abs=0.01)
    assert list(fitted.history[0]) == ["member", "error", "weight", "seconds"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_adult_is_boosted_as_well_as_by_scikit_learn(spark):
    data, models = adult(), 8
    frames = {
        name: frame({"x": x, "label": y.astype(np.float64)}).select("label", array_to_vector("x").alias("features"))
        for name, (x, y) in data.items()
    }
    x, y = data["train"]
    base = DecisionTreeClassifier(maxDepth=1, maxBins=512)
    fitted = Boosting(base=base, numModels=models).fit(frames["train"].repartition(2).cache())
    expected = AdaBoostClassifier(Tree(max_depth=1), n_estimators=models).fit(x, y).score(*data["test"])
    votes = fitted.transform(frames["test"])
    right = votes.where("prediction = label").count() / votes.count()
    assert right == pytest.approx(expected, abs=0.005)


@pytest.mark.slow
def test_pipelines_are_boosted(wine):
    names = ["a", "b", "c"]
    given = wine.select("label", *(wine["few"][index].alias(name) for index, name in enumerate(names)))
    stages = [VectorAssembler(inputCols=names, outputCol="features"), DecisionTreeClassifier(**STUMP)]
    fitted = Boosting(base=Pipeline(stages=stages), numModels=2).fit(given)
    assert [type(model).__name__ for model in fitted.models] == ["PipelineModel"] * 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_networks_are_boosted(wine):
    base = TorchClassifier(
        model=nets.scores,
        inputCols=["few"],
        optimizer=partial(torch.optim.Adam, lr=0.05),
        epochs=2,
        batchSize=32,
        weightCol="w",
        predictionCol="found",
    )
    fitted = Boosting(base=base, numModels=3, learningRate=0.3, seed=5).fit(wine)
    assert [row["member"] for row in fitted.history] == [0, 1, 2]
    assert all(0 < row["error"] < 2 / 3 for row in fitted.history)
    assert [row["weight"] for row in fitted.history] == fitted.weights
    assert base.getWeightCol() == "w"
    votes = fitted.transform(wine).select("label", "found").collect()
    assert np.mean([row.label == row.found for row in votes]) > 0.8


@pytest.mark.slow
def test_members_of_classes_tell_how_far_they_are_apart(wine):
    boosting = Boosting(base=DecisionTreeClassifier(**STUMP), numModels=2).setDisagreementCol("apart")
    fitted = boosting.fit(wine)
    first, second = fitted.weights
    found = {row.apart for row in fitted.transform(wine).select("apart").collect()}
    assert sorted(found) == pytest.approx([0.0, min(first, second) / (first + second)])
    assert fitted.uid == boosting.uid


@pytest.mark.slow
@pytest.mark.parametrize(("base", "most"), [(DecisionTreeClassifier, 50), (LinearRegression, 100)])
def test_members_at_most(wine, monkeypatch, base, most):
    asked = []

    def stands_in(self, rounds, number):
        asked.append(number)
        raise Lost

    monkeypatch.setattr(boosting._BoostingRun, "run", stands_in)
    for given in (Boosting(base=base()), Boosting(base=base(), numModels=7), Boosting(base=base()).setNumModels(3)):
        with pytest.raises(Lost):
            given.fit(wine)
    assert asked == [most, 7, 3]
    assert Boosting().getNumModels() is None


# ---- members that are finished ----------------------------------------------------------------------------------


class Lost(Exception):
    """The driver's end, as far as a test can have it."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fit_that_failed_goes_on_with_what_is_missing(wine, tmp_path, monkeypatch):
    fit, asked = fit_on_driver, []

    def fails(members, rows, plan):
        asked.append(members[0].index)
        if len(asked) == 3:
            raise Lost
        return fit(members, rows, plan)

    def ensemble(directory, most):
        base = DecisionTreeClassifier(**STUMP)
        return Boosting(base=base, numModels=most, runDir=str(tmp_path / directory)).fit(wine)

    monkeypatch.setattr(boosting, "fit_members", fit)
    with monkeypatch.context() as patch:
        patch.setattr(boosting, "fit_members", fails)
        with pytest.raises(Lost):
            ensemble("run", 3)
    resumed, whole = ensemble("run", 4), ensemble("other", 4)
    assert (resumed.report["restored"], resumed.report["trained"]) == ([0, 1], [2, 3])
    assert (whole.report["restored"], whole.report["trained"]) == ([], [0, 1, 2, 3])
    assert resumed.weights == whole.weights
    assert [row["error"] for row in resumed.history] == [row["error"] for row in whole.history]
    assert [model.toDebugString.partition("\n")[2] for model in resumed.models] == [
        model.toDebugString.partition("\n")[2] for model in whole.models
    ]
    with pytest.raises(InvalidInput, match="learningRate"):
        Boosting(base=DecisionTreeClassifier(**STUMP), learningRate=0.5, runDir=str(tmp_path / "run")).fit(wine)


def test_members_have_seeds_and_hidden_columns_of_their_own(wine, monkeypatch):
    given, before = [], persistent(wine)

    def stands_in(members, rows, plan):
        given.append((members[0].estimator, rows.frame.columns))
        raise Lost

    monkeypatch.setattr(boosting, "fit_members", stands_in)
    with pytest.raises(Lost):
        Boosting(base=DecisionTreeClassifier(**STUMP), seed=9).fit(wine)
    ((estimator, columns),) = given
    assert estimator.getSeed() == member_seed(9, 0)
    assert estimator.getWeightCol() in columns
    assert persistent(wine) == before


# ---- what cannot be boosted -------------------------------------------------------------------------------------


def network_of_numbers(**given):
    return TorchRegressor(model=nets.column, inputCols=["few"], **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict, "base is not set"),
        (lambda: {"base": MultilayerPerceptronClassifier(layers=[13, 3])}, "which has no weightCol"),
        (lambda: {"base": TorchEstimator(model=nets.scores, inputCols=["few"])}, "expects a classifier or a regressor"),
        (lambda: {"base": TorchClassifier(model=nets.scores, labelCol=["a", "b"])}, "one column of labels"),
        (
            lambda: {"base": DecisionTreeClassifier(), "validationIndicatorCol": "w"},
            "validationIndicatorCol is set; it is for numbers",
        ),
        (
            lambda: {"base": TorchClassifier(model=nets.scores, inputCols=["few"], predictionCol="")},
            "base has no predictionCol; boosting reads what members predict",
        ),
        (
            lambda: {"base": network_of_numbers(validationIndicatorCol="held"), "validationIndicatorCol": "held"},
            "validationIndicatorCol is 'held', and the base's as well; boosting keeps these rows from members",
        ),
        (lambda: {"base": DecisionTreeClassifier(labelCol="nowhere")}, "labelCol is 'nowhere'; the data has"),
        (lambda: {"base": DecisionTreeClassifier(labelCol="features")}, "labelCol is 'features', of type"),
        (lambda: {"base": DecisionTreeClassifier(weightCol="nowhere")}, "weightCol is 'nowhere'; the data has"),
        (
            lambda: {"base": DecisionTreeClassifier(predictionCol="w")},
            "a column 'w', which the base's models write",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(wine, monkeypatch, given, message):
    monkeypatch.setattr(boosting, "fit_members", lambda *_: pytest.fail("a member was trained"))
    with pytest.raises(InvalidInput, match=message):
        Boosting(**given()).fit(wine)


def test_numbers_have_no_disagreement(wine, monkeypatch):
    monkeypatch.setattr(boosting, "fit_members", lambda *_: pytest.fail("a member was trained"))
    with pytest.raises(InvalidInput, match="disagreementCol is 'apart', but boosted numbers are a sum"):
        Boosting(base=LinearRegression()).setDisagreementCol("apart").fit(wine)


@pytest.mark.parametrize("given", [{"numModels": 0}, {"learningRate": 0.0}, {"patience": 0}, {"tol": -1.0}])
def test_values_that_cannot_be(spark, given):
    with pytest.raises(InvalidInput, match=f"{next(iter(given))} is"):
        Boosting(**given)


def test_parallelism_is_ignored_with_a_warning(wine, monkeypatch):
    def stands_in(*_):
        raise Lost

    monkeypatch.setattr(boosting, "fit_members", stands_in)
    with pytest.warns(UserWarning, match="ignores parallelism"), pytest.raises(Lost):
        Boosting(base=DecisionTreeClassifier(**STUMP)).setParallelism(2).fit(wine)


# ---- Params -----------------------------------------------------------------------------------------------------


def test_copies_have_bases_of_their_own(spark):
    tree = DecisionTreeClassifier(maxDepth=2)
    first = Boosting(base=tree, numModels=3)
    other = first.copy({tree.maxDepth: 5, first.numModels: 7})
    assert (first.getBase().getMaxDepth(), first.getNumModels()) == (2, 3)
    assert (other.getBase().getMaxDepth(), other.getNumModels()) == (5, 7)
    assert "numModels" in first.explainParams()


@pytest.mark.slow
def test_an_estimator_is_saved_and_loaded(spark, tmp_path):
    first = Boosting(base=DecisionTreeClassifier(maxDepth=2, weightCol="w"), numModels=3, learningRate=0.5, seed=4)
    first.save(str(tmp_path / "boosting"))
    other = Boosting.load(str(tmp_path / "boosting"))
    assert (other.uid, other.getNumModels(), other.getLearningRate(), other.getSeed()) == (first.uid, 3, 0.5, 4)
    assert (other.getBase().getMaxDepth(), other.getBase().getWeightCol()) == (2, "w")


@pytest.mark.slow
def test_a_model_is_saved_and_loaded(wine, tmp_path):
    fitted = Boosting(base=DecisionTreeClassifier(**STUMP, predictionCol="found"), numModels=2).fit(wine)
    fitted.save(str(tmp_path / "model"))
    loaded = EnsembleModel.load(str(tmp_path / "model"))
    assert (loaded.weights, loaded.history, loaded.report) == (fitted.weights, fitted.history, fitted.report)
    assert loaded.transform(wine).select("found").collect() == fitted.transform(wine).select("found").collect()
