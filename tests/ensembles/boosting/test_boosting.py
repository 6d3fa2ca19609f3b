"""The Boosting estimator: equal to scikit-learn, with any bases, resumed, and on invalid input."""

from functools import partial
from unittest.mock import Mock

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

from sparkdl import Boosting, InvalidInput, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ensembles.boosting import estimator as boosting
from sparkdl.ensembles.boosting.gradient import RESIDUAL
from sparkdl.ensembles.members.driver_fits import fit_on_driver
from sparkdl.ensembles.resampling.bootstrap import member_seed
from tests.ensembles.boosting.test_samme import persistent
from tests.ml import nets
from tests.sessions import frame

stump = partial(DecisionTreeClassifier, maxDepth=1, maxBins=256)


class Lost(Exception):
    """The driver's end."""


@pytest.fixture(scope="module")
def wine(spark):
    x, y = load_wine(return_X_y=True)
    scaled = (x - x.mean(0)) / x.std(0)
    arrays = {"x": x, "few": scaled[:, [0, 6, 9]], "label": y.astype(np.float64), "w": np.linspace(0.5, 2.0, len(y))}
    rows = frame(arrays).select("label", "w", "few", array_to_vector("x").alias("features")).repartition(2).cache()
    rows.count()  # executors hold them from their first use on
    return rows


@pytest.fixture
def untrained(monkeypatch):
    """Replaces the training of members by an error; records its arguments."""
    stand_in = Mock(side_effect=Lost)
    monkeypatch.setattr(boosting, "fit_members", stand_in)
    return stand_in


def test_validation_rows_of_the_base_are_the_same_for_all_members(wine, untrained):
    taken = []

    def take(members, rows, plan):
        taken.append((members[0].estimator, rows.collect()))
        raise Lost

    untrained.side_effect = take
    base = TorchRegressor(model=nets.column, inputCols=["few"], validationFraction=0.3)
    with pytest.raises(Lost):
        Boosting(base=base).fit(wine)
    [(estimator, rows)] = taken
    name, residual = estimator.getValidationIndicatorCol(), estimator.getLabelCol()
    assert (estimator.getValidationFraction(), residual) == (None, RESIDUAL)
    training = [row[residual] for row in rows if not row[name]]
    assert len(rows) / 2 < len(training) < len(rows)
    assert sum(training) == pytest.approx(0, abs=1e-9)  # the members' start is the mean of training rows
    assembler = VectorAssembler(inputCols=["w"], outputCol="made")
    pipeline = Pipeline(stages=[assembler, base.copy({base.inputCols: ["made"]})])
    with pytest.raises(InvalidInput, match="validationFraction of the base is set, and its pipeline makes the columns"):
        Boosting(base=pipeline).fit(wine)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_three_classes_are_boosted_as_by_scikit_learn(wine, weighted):
    x, y = load_wine(return_X_y=True)
    weights = np.linspace(0.5, 2.0, len(y)) if weighted else None
    base = stump(weightCol="w") if weighted else stump()
    ensemble = Boosting(base=base, numModels=4, learningRate=0.5, disagreementCol="apart")
    fitted = ensemble.fit(wine)
    expected = AdaBoostClassifier(Tree(max_depth=1), n_estimators=4, learning_rate=0.5).fit(x, y, weights)
    assert [row["error"] for row in fitted.history] == pytest.approx(list(expected.estimator_errors_), rel=1e-9)
    assert fitted.weights == pytest.approx(list(expected.estimator_weights_), rel=1e-9)
    assert (fitted.rule, fitted.numClasses, len(fitted.models), fitted.uid) == ("hard", 3, 4, ensemble.uid)
    scored = fitted.transform(wine).cache()
    assert scored.where("prediction = label").count() / len(y) == pytest.approx(expected.score(x, y), abs=0.01)
    assert 0 < scored.agg({"apart": "max"}).first()[0] < 1
    assert list(fitted.history[0]) == ["member", "error", "weight", "seconds"]


@pytest.mark.slow
def test_pipelines_and_networks_are_boosted(wine):
    stages = [VectorAssembler(inputCols=["features"], outputCol="assembled"), stump(featuresCol="assembled")]
    fitted = Boosting(base=Pipeline(stages=stages), numModels=2).fit(wine)
    assert [type(model).__name__ for model in fitted.models] == ["PipelineModel"] * 2
    adam = partial(torch.optim.Adam, lr=0.05)
    base = CLASSIFIER(optimizer=adam, epochs=2, batchSize=32, weightCol="w", predictionCol="class")
    fitted = Boosting(base=base, numModels=2, learningRate=0.3, seed=5).fit(wine)
    assert [row["member"] for row in fitted.history] == [0, 1]
    assert all(0 < row["error"] < 2 / 3 for row in fitted.history)
    assert [row["weight"] for row in fitted.history] == fitted.weights
    assert base.getWeightCol() == "w"
    assert fitted.transform(wine).columns[-1] == "class"


@pytest.mark.slow
def test_resumed_fit_equals_an_uninterrupted_one(wine, tmp_path, monkeypatch):
    def trees(model):
        return [tree.toDebugString.partition("\n")[2] for tree in model.models]

    def ensemble(directory, most):
        return Boosting(base=stump(), numModels=most, runDir=str(tmp_path / directory)).fit(wine)

    def fails(members, rows, plan):
        if members[0].index == 1:
            raise Lost
        return fit_on_driver(members, rows, plan)

    with monkeypatch.context() as patch:
        patch.setattr(boosting, "fit_members", fails)
        with pytest.raises(Lost):
            ensemble("run", 2)
    resumed, whole = ensemble("run", 3), ensemble("other", 3)
    assert (resumed.report["restored"], resumed.report["trained"]) == ([0], [1, 2])
    assert (whole.report["restored"], whole.report["trained"]) == ([], [0, 1, 2])
    assert (resumed.weights, trees(resumed)) == (whole.weights, trees(whole))
    assert [row["error"] for row in resumed.history] == [row["error"] for row in whole.history]
    with pytest.raises(InvalidInput, match="learningRate"):
        Boosting(base=stump(), learningRate=0.5, runDir=str(tmp_path / "run")).fit(wine)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "most"), [(DecisionTreeClassifier, 50), (LinearRegression, 100)])
def test_default_number_of_members(wine, monkeypatch, base, most):
    run = Mock(side_effect=Lost)
    monkeypatch.setattr(boosting, "_boosted", run)
    for given in (Boosting(base=base()), Boosting(base=base(), numModels=7)):
        with pytest.raises(Lost):
            given.fit(wine)
    assert [call.args[2] for call in run.call_args_list] == [most, 7]
    assert Boosting().getNumModels() is None


def test_members_have_seeds_and_hidden_columns(wine, untrained):
    before = persistent(wine.sparkSession)
    with pytest.warns(UserWarning, match="ignores parallelism"), pytest.raises(Lost):
        Boosting(base=stump(), seed=9, parallelism=2).fit(wine)
    (member,), rows, _ = untrained.call_args.args
    assert member.estimator.getSeed() == member_seed(9, 0)
    assert member.estimator.getWeightCol() in rows.columns
    assert persistent(wine.sparkSession) == before


REGRESSOR = partial(TorchRegressor, model=nets.column, inputCols=["few"])
CLASSIFIER = partial(TorchClassifier, model=nets.scores, inputCols=["few"])


@pytest.mark.parametrize(
    ("base", "given", "message"),
    [
        (None, {}, "base is not set"),
        (lambda: MultilayerPerceptronClassifier(layers=[13, 3]), {}, "which has no weightCol"),
        (lambda: TorchEstimator(model=nets.scores), {}, "expects a classifier or a regressor"),
        (lambda: CLASSIFIER(labelCol=["a", "b"]), {}, "one column of labels"),
        (stump, {"validationIndicatorCol": "w"}, "validationIndicatorCol is set, but only boosting of regressors"),
        (lambda: CLASSIFIER(predictionCol=""), {}, "base has no predictionCol; boosting reads the members' pred"),
        (
            lambda: REGRESSOR(validationIndicatorCol="held"),
            {"validationIndicatorCol": "held"},
            "validationIndicatorCol is 'held', and so is the base's; boosting hides these rows from members",
        ),
        (LinearRegression, {"patience": 1}, "patience is set and validationIndicatorCol is not; expected both"),
        (LinearRegression, {"disagreementCol": "apart"}, "disagreementCol is 'apart', but members of a boosted"),
        (lambda: stump(labelCol="nowhere"), {}, "labelCol is 'nowhere'; the data has"),
        (lambda: stump(labelCol="features"), {}, "labelCol is 'features', of type"),
        (lambda: stump(weightCol="nowhere"), {}, "weightCol is 'nowhere'; the data has"),
        (lambda: stump(predictionCol="w"), {}, "a column 'w', which the base's models write"),
    ],
)
def test_invalid_input_raises_before_training(wine, untrained, base, given, message):
    with pytest.raises(InvalidInput, match=message):
        Boosting(**given | ({} if base is None else {"base": base()})).fit(wine)
