"""Bagging: members on draws of rows and features, their vote, and invalid settings."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LinearSVC
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidator
from pyspark.sql import functions as F

from sparkdl import AllReduce, ParallelSGD, TorchClassifier
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, member_seed
from sparkdl.errors import InvalidInput
from tests.ml import nets
from tests.sessions import frame as made

ROWS = 300
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(ROWS, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RANDOM.normal(size=ROWS)


@pytest.fixture(scope="module")
def frame(spark):
    arrays = {"id": np.arange(ROWS), "features": X, "label": (Y > 0).astype(np.float64), "number": Y}
    return made(arrays).withColumn("vector", array_to_vector("features")).repartition(4, "id").cache()


def network(**given) -> TorchClassifier:
    wanted = {"model": nets.two_scores, "optimizer": partial(torch.optim.SGD, lr=0.1), "batchSize": 16, "epochs": 2}
    return TorchClassifier(**{**wanted, "idCol": "id", **given})


def tree(**given) -> DecisionTreeClassifier:
    return DecisionTreeClassifier(featuresCol="vector", maxDepth=3, **given)


def vectors(frame, name: str) -> np.ndarray:
    return np.array([row[0] for row in frame.orderBy("id").select(vector_to_array(name)).collect()])


def numbers(frame, name: str) -> np.ndarray:
    return np.array([row[0] for row in frame.orderBy("id").select(name).collect()])


@pytest.mark.slow
def test_vote_is_the_mean_of_different_members_and_fits_repeat(frame, tmp_path):
    bagging = Bagging(base=network(), numModels=3, seed=5, disagreementCol="apart", maxFeatures=2)
    bagging.save(str(tmp_path / "bagging"))
    model, again = bagging.fit(frame), Bagging.load(str(tmp_path / "bagging")).fit(frame)
    scored = model.transform(frame).cache()
    assert scored.columns == [*frame.columns, "rawPrediction", "probability", "prediction", "apart"]
    each = [vectors(member.transform(frame), "probability") for member in model.models]
    assert np.allclose(vectors(scored, "probability"), np.mean(each, 0), atol=1e-6)
    said = np.argmax(np.mean(each, 0), 1)
    assert (numbers(scored, "prediction") == said).all()
    assert np.allclose(numbers(scored, "apart"), np.mean([np.argmax(one, 1) != said for one in each], 0))
    assert [row["member"] for row in model.history] == [0, 1, 2]
    assert [row["seed"] for row in model.history] == [member_seed(5, index) for index in range(3)]
    assert (model.uid, model.report["trained"], model.report["restored"]) == (bagging.uid, [0, 1, 2], [])
    states = [[member.module().state_dict() for member in each.models] for each in (model, again)]
    for one, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert int(one["seen_0"].sum()) == 2
    assert not torch.equal(states[0][0]["module.weight"], states[0][1]["module.weight"])
    assert len({tuple(state["seen_0"].tolist()) for state in states[0]}) > 1


@pytest.mark.slow
def test_members_that_the_driver_fits_get_draws_and_features(frame):
    counts = Bootstrap(1.0, True, member_seed(0, 0)).counts(np.arange(ROWS))
    linear = LinearRegression(featuresCol="vector", labelCol="number", solver="normal")
    with pytest.warns(UserWarning, match="voting is set, but only classifiers use it; this regressor ignores it"):
        model = Bagging(base=linear, numModels=1, idCol="id", voting="soft").fit(frame)
    x = np.c_[X, np.ones(ROWS)]
    wanted = np.linalg.lstsq(np.repeat(x, counts, 0), np.repeat(Y, counts), rcond=None)[0]
    assert np.allclose([*model.models[0].coefficients, model.models[0].intercept], wanted, atol=1e-8)
    assert model.rule == "mean"
    rounds = network(strategy=ParallelSGD(rounds=2), numWorkers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [member] = Bagging(base=rounds, numModels=1).fit(frame).models
    assert member.report["rows"] == (counts > 0).sum()
    assembler = VectorAssembler(inputCols=["vector"], outputCol="assembled")
    base = Pipeline(stages=[assembler, tree().setFeaturesCol("assembled")])
    bagging = Bagging(base=base, numModels=2, idCol="id", subsamplingRate=0.6, maxFeatures=0.7, parallelism=2)
    fitted = Pipeline(stages=[bagging]).fit(frame)
    assert (numbers(fitted.transform(frame), "prediction") == numbers(frame, "label")).mean() > 0.7
    assert fitted.stages[0].rule == "soft"


@pytest.mark.slow
def test_classes_missing_in_a_draw_are_classes_of_the_ensemble(spark):
    """One row of class 2: most members know two classes only."""
    rows = [([float(index % 7), 1.0], float(index % 2), index) for index in range(60)] + [([99.0, 1.0], 2.0, 60)]
    frame = spark.createDataFrame(rows, "features array<double>, label double, id long")
    frame = frame.withColumn("vector", array_to_vector("features")).cache()
    model = Bagging(base=tree(), numModels=5, idCol="id", subsamplingRate=0.7, seed=1).fit(frame)
    assert len({member.numClasses for member in model.models}) == 2
    chances = vectors(model.transform(frame), "probability")
    assert chances.shape == (61, 3)
    assert np.allclose(chances.sum(1), 1)
    assert Bagging(base=tree(), numModels=5, idCol="id", voting="hard").fit(frame).transform(frame).count() == 61
    network_of_three = network(model=partial(torch.nn.Linear, 2, 3), epochs=1)
    model = Bagging(base=network_of_three, numModels=2, voting="hard").fit(frame)
    assert (model.rule, vectors(model.transform(frame), "probability").shape) == ("hard", (61, 3))


@pytest.mark.slow
def test_partitions_and_stored_members(frame, tmp_path):
    bagging = Bagging(base=network(epochs=1), partitioned=True, numModels=3)
    with pytest.warns(UserWarning, match="partitioned=True ignores numModels=3"):
        model = bagging.fit(frame)
    assert sum(member.report["rows"] for member in model.models) == ROWS
    assert len(model.models) == 4
    base = tree(predictionCol="class", rawPredictionCol="", probabilityCol="chances").setThresholds([1.0, 0.0])
    stored = Bagging(base=base, idCol="id", runDir=str(tmp_path), bootstrap=False, subsamplingRate=0.8, seed=2)
    first, more = (stored.setNumModels(count).fit(frame) for count in (1, 2))
    assert (more.report["trained"], more.report["restored"]) == ([1], [0])
    assert more.history[0]["seconds"] == first.history[0]["seconds"]
    scored = more.transform(frame)
    assert scored.columns == [*frame.columns, "chances", "class"]
    assert (numbers(scored, "class") == (vectors(scored, "chances")[:, 1] > 0)).all()
    assert isinstance(more, EnsembleModel)
    for changed, name in ((stored.copy().setSeed(3), "seed"), (stored, "rows")):
        with pytest.raises(InvalidInput, match=name):
            changed.fit(frame.where("id > 3") if name == "rows" else frame)


@pytest.mark.slow
def test_search_over_the_ensemble_and_its_base(frame, tmp_path):
    base = LinearSVC(featuresCol="vector", maxIter=5)
    bagging = Bagging(base=base, numModels=1, idCol="id", runDir=str(tmp_path))
    grid = [{base.regParam: 0.0, bagging.numModels: 2}, {base.regParam: 1e6}]
    judge = MulticlassClassificationEvaluator(metricName="accuracy")
    search = CrossValidator(estimator=bagging, estimatorParamMaps=grid, evaluator=judge, numFolds=2, seed=1)
    found = search.fit(frame)
    assert found.avgMetrics[0] > found.avgMetrics[1] + 0.2
    assert (found.bestModel.rule, len(found.bestModel.models)) == ("hard", 2)
    assert len([*tmp_path.iterdir()]) == 5  # a directory for each map and fold, and one for the best


@pytest.mark.parametrize(
    ("base", "given", "message"),
    [
        (None, {}, r"base is not set"),
        (lambda: "tree", {}, r"base is 'tree'; expected a pyspark.ml Estimator"),
        (VectorAssembler, {}, r"expected a pyspark.ml Estimator"),
        (tree, {"subsamplingRate": 1.5, "bootstrap": False}, r"subsamplingRate is 1.5; expected at most 1 without"),
        (tree, {"subsamplingRate": 0.0}, r"subsamplingRate is 0.0; expected a number above 0"),
        (tree, {"numModels": 0}, r"numModels is 0; expected at least 1"),
        (tree, {"voting": "loud"}, r"voting is 'loud'"),
        (tree, {"maxFeatures": "cbrt"}, r"maxFeatures is 'cbrt'"),
        (tree, {"maxFeatures": 4}, r"maxFeatures is 4, and the data has 3 features"),
        (network, {"maxFeatures": 4}, r"maxFeatures is 4, and the data has 3 features"),
        (tree, {"partitioned": True}, r"partitioned is True.*Tree.*does not train in a task"),
        (lambda: network(numWorkers=2), {"partitioned": True}, r"does not train in a task"),
        (lambda: network(strategy=AllReduce(), inputCols=["none"]), {}, r"no column 'none'"),
        (tree, {"idCol": "number"}, r"idCol is 'number', of type double; expected integers"),
        (lambda: tree(labelCol="none"), {}, r"labelCol of the base is 'none'; the data has"),
        (tree, {"idCol": "none"}, r"idCol is 'none'; the data has"),
    ],
)
def test_invalid_settings_raise(frame, base, given, message):
    with pytest.raises(InvalidInput, match=message):
        Bagging(**given | ({} if base is None else {"base": base()})).fit(frame)


def test_null_ids_raise(frame):
    rows = frame.withColumn("id", F.when(F.col("id") > 3, F.col("id")))
    with pytest.raises(Exception, match="idCol 'id' is null in a row; expected an integer in each"):
        Bagging(base=tree(), numModels=1, idCol="id").fit(rows)
