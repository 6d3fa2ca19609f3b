"""Bagging: what its members are given, what they say together, what is kept and what is refused."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, LinearSVC, LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F

from sparkdl import AllReduce, ParallelSGD, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ensembles.bagging import Bagging
from sparkdl.ensembles.model import EnsembleModel
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, member_seed
from sparkdl.ensembles.stacking import Stacking
from sparkdl.errors import InvalidInput
from tests.ml import nets

ROWS = 300


@pytest.fixture(scope="module")
def frame(spark):
    """Three numbers as an array and as a vector, two classes, a number to predict."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(ROWS, 3))
    y = (x @ [1.0, -2.0, 0.5] + 0.3 * draw.normal(size=ROWS)).tolist()
    rows = [
        ([*map(float, row)], float(value > 0), value, index)
        for index, (row, value) in enumerate(zip(x, y, strict=True))
    ]
    made = spark.createDataFrame(rows, "features array<double>, label double, number double, id long")
    made = made.withColumn("vector", array_to_vector("features")).repartition(4, "id").cache()
    made.count()
    return made


def torch_base(**given) -> TorchClassifier:
    wanted = {"model": nets.two_scores, "optimizer": partial(torch.optim.SGD, lr=0.1), "batchSize": 16, "epochs": 2}
    return TorchClassifier(**{**wanted, "idCol": "id", **given})


def tree(**given) -> DecisionTreeClassifier:
    return DecisionTreeClassifier(featuresCol="vector", maxDepth=3, **given)


def vectors(frame, name: str) -> np.ndarray:
    return np.array([row[0] for row in frame.orderBy("id").select(vector_to_array(name)).collect()])


def numbers(frame, name: str) -> np.ndarray:
    return np.array([row[0] for row in frame.orderBy("id").select(name).collect()])


@pytest.mark.slow
def test_the_ensemble_is_the_mean_of_its_members(frame):
    model = Bagging(base=torch_base(), numModels=3, seed=5, disagreementCol="apart").fit(frame)
    assert isinstance(model, EnsembleModel)
    scored = model.transform(frame)
    assert scored.columns == [*frame.columns, "rawPrediction", "probability", "prediction", "apart"]
    each = [vectors(member.transform(frame), "probability") for member in model.models]
    assert np.allclose(vectors(scored, "probability"), np.mean(each, 0), atol=1e-6)
    said = np.argmax(np.mean(each, 0), 1)
    assert (numbers(scored, "prediction") == said).all()
    apart = np.mean([np.argmax(one, 1) != said for one in each], 0)
    assert np.allclose(numbers(scored, "apart"), apart)
    assert (numbers(scored, "prediction") == numbers(frame, "label")).mean() > 0.9
    assert [row["member"] for row in model.history] == [0, 1, 2]
    assert [row["seed"] for row in model.history] == [member_seed(5, index) for index in range(3)]
    assert (model.report["trained"], model.report["restored"]) == ([0, 1, 2], [])


@pytest.mark.slow
def test_members_differ_and_a_fit_is_the_same_again(frame):
    model, again = (Bagging(base=torch_base(), numModels=3).fit(frame) for _ in range(2))
    weights = [member.module().state_dict()["weight"] for member in model.models]
    assert all(not torch.equal(weights[one], weights[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    others = [member.module().state_dict()["weight"] for member in again.models]
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


@pytest.mark.slow
def test_weights_and_copies_say_the_same(frame):
    """A tree takes weights, one behind a pipeline with another estimator takes copies, a network positions."""
    counts = Bootstrap(1.0, True, member_seed(0, 0)).counts(np.arange(ROWS))
    linear = LinearRegression(featuresCol="vector", labelCol="number", solver="normal")
    [found] = Bagging(base=linear, numModels=1, idCol="id").fit(frame).models
    x = np.c_[np.array([row[0] for row in frame.orderBy("id").select("features").collect()]), np.ones(ROWS)]
    y = numbers(frame, "number")
    wanted = np.linalg.lstsq(np.repeat(x, counts, 0), np.repeat(y, counts), rcond=None)[0]
    assert np.allclose([*found.coefficients, found.intercept], wanted, atol=1e-8)
    [network] = Bagging(base=torch_base(epochs=1), numModels=1).fit(frame).models
    assert network.report["rows"] == counts.sum()


@pytest.mark.slow
@pytest.mark.parametrize("replace", [True, False])
def test_members_of_mllib_in_parallel(frame, replace):
    bagging = Bagging(
        base=tree(), numModels=4, subsamplingRate=0.6, bootstrap=replace, maxFeatures=0.7, parallelism=2, idCol="id"
    )
    scored = bagging.fit(frame).transform(frame)
    assert scored.columns == [*frame.columns, "rawPrediction", "probability", "prediction"]
    assert (numbers(scored, "prediction") == numbers(frame, "label")).mean() > 0.7


@pytest.mark.slow
def test_voting_is_soft_where_there_are_probabilities(frame):
    assert Bagging(base=tree(), numModels=2).fit(frame).rule == "soft"
    assert Bagging(base=LinearSVC(featuresCol="vector", maxIter=2), numModels=2).fit(frame).rule == "hard"
    assert Bagging(base=torch_base(), numModels=2, voting="hard").fit(frame).rule == "hard"
    base = LinearRegression(featuresCol="vector", labelCol="number")
    with pytest.warns(UserWarning, match="voting is for classifiers"):
        model = Bagging(base=base, numModels=2, voting="soft").fit(frame)
    assert model.rule == "mean"


@pytest.mark.slow
def test_a_class_that_a_member_was_not_shown(spark):
    """One row of class 2: most members know of two classes only."""
    rows = [([float(index % 7), 1.0], float(index % 2), index) for index in range(60)] + [([99.0, 1.0], 2.0, 60)]
    frame = spark.createDataFrame(rows, "features array<double>, label double, id long")
    frame = frame.withColumn("vector", array_to_vector("features"))
    model = Bagging(base=tree(), numModels=5, idCol="id", subsamplingRate=0.7, seed=1).fit(frame)
    assert len({member.numClasses for member in model.models}) == 2
    chances = vectors(model.transform(frame), "probability")
    assert chances.shape == (61, 3)
    assert np.allclose(chances.sum(1), 1)
    assert Bagging(base=tree(), numModels=5, idCol="id", voting="hard").fit(frame).transform(frame).count() == 61
    network = Bagging(base=torch_base(model=partial(torch.nn.Linear, 2, 3)), numModels=5).fit(frame)
    assert vectors(network.transform(frame), "probability").shape == (61, 3)


@pytest.mark.slow
def test_numbers_and_arrays(frame):
    regressor = TorchRegressor(
        model=nets.column, labelCol="number", epochs=5, batchSize=16, optimizer=partial(torch.optim.SGD, lr=0.05)
    )
    model = Bagging(base=regressor, numModels=3, idCol="id").fit(frame)
    each = [numbers(member.transform(frame), "prediction") for member in model.models]
    assert np.allclose(numbers(model.transform(frame), "prediction"), np.mean(each, 0), atol=1e-6)
    arrays = TorchEstimator(model=nets.scores, loss=torch.nn.MSELoss(), labelCol=None, batchSize=32)
    scored = Bagging(base=arrays, numModels=2, idCol="id").fit(frame).transform(frame)
    assert np.array([row[0] for row in scored.select("prediction").collect()]).shape == (ROWS, 3)


@pytest.mark.slow
def test_members_that_do_not_train_in_a_task(frame):
    """Rounds, and gangs of several, are fits of the driver on the same rows."""
    rounds = torch_base(strategy=ParallelSGD(rounds=2), numWorkers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Bagging(base=rounds, numModels=2).fit(frame)
    counts = Bootstrap(1.0, True, member_seed(0, 0)).counts(np.arange(ROWS))
    assert model.models[0].report["rows"] == (counts > 0).sum()
    assert (numbers(model.transform(frame), "prediction") == numbers(frame, "label")).mean() > 0.8


def blinded(frame, but: int = -1):
    """The rows with all features but one at a number far off."""
    return frame.withColumn("features", F.transform("features", lambda x, i: F.when(i == but, x).otherwise(1e6)))


@pytest.mark.slow
def test_random_subspaces_of_a_network(frame, tmp_path):
    model = Bagging(base=torch_base(), numModels=4, maxFeatures=1, bootstrap=False, seed=3).fit(frame)
    seen = set()
    for member in model.models:
        [mask] = [value for name, value in member.module().state_dict().items() if name.startswith("seen")]
        assert int(mask.sum()) == 1
        seen.add(int(mask.float().argmax()))
        hidden = blinded(frame, but=int(mask.float().argmax()))
        one, other = (vectors(member.transform(each), "probability") for each in (frame, hidden))
        assert np.allclose(one, other)
    assert len(seen) > 1
    one, other = (vectors(model.transform(each), "probability") for each in (frame, blinded(frame)))
    assert not np.allclose(one, other)
    model.write().save(str(tmp_path / "model"))
    loaded = EnsembleModel.load(str(tmp_path / "model"))
    assert (vectors(loaded.transform(frame), "probability") == vectors(model.transform(frame), "probability")).all()


@pytest.mark.slow
def test_finished_members_are_kept_for_more_models(frame, tmp_path):
    first = Bagging(base=torch_base(), numModels=2, runDir=str(tmp_path)).fit(frame)
    more = Bagging(base=torch_base(), numModels=4, runDir=str(tmp_path), disagreementCol="apart").fit(frame)
    assert (more.report["trained"], more.report["restored"]) == ([2, 3], [0, 1])
    assert [row["seconds"] for row in more.history[:2]] == [row["seconds"] for row in first.history]
    undisturbed = Bagging(base=torch_base(), numModels=4).fit(frame)
    one, other = vectors(more.transform(frame), "probability"), vectors(undisturbed.transform(frame), "probability")
    assert (one == other).all()
    with pytest.raises(InvalidInput, match="epochs"):
        Bagging(base=torch_base(epochs=7), numModels=4, runDir=str(tmp_path)).fit(frame)
    with pytest.raises(InvalidInput, match="rows"):
        Bagging(base=torch_base(), numModels=4, runDir=str(tmp_path)).fit(frame.where("id > 3"))


@pytest.mark.slow
def test_partitions(spark, frame, tmp_path):
    bagging = Bagging(base=torch_base(), partitioned=True, runDir=str(tmp_path))
    model = bagging.fit(frame)
    assert len(model.models) == 4
    assert sum(member.report["rows"] for member in model.models) == ROWS
    assert bagging.fit(frame).report["trained"] == []
    assert (numbers(model.transform(frame), "prediction") == numbers(frame, "label")).mean() > 0.9
    with pytest.warns(UserWarning, match="numModels is 3, which is ignored"):
        Bagging(base=torch_base(), partitioned=True, numModels=3).fit(frame)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pipelines_searches_and_maps(frame, tmp_path):
    assembler = VectorAssembler(inputCols=["vector"], outputCol="assembled")
    bagging = Bagging(base=Pipeline(stages=[assembler, tree().setFeaturesCol("assembled")]), numModels=2, idCol="id")
    fitted = Pipeline(stages=[bagging]).fit(frame)
    assert (numbers(fitted.transform(frame), "prediction") == numbers(frame, "label")).mean() > 0.7
    base = LogisticRegression(featuresCol="vector", maxIter=5)
    bagging = Bagging(base=base, idCol="id", runDir=str(tmp_path), bootstrap=False, subsamplingRate=0.8)
    grid = ParamGridBuilder().addGrid(bagging.numModels, [1, 2]).addGrid(base.regParam, [0.0, 1e6]).build()
    search = CrossValidator(estimator=bagging, estimatorParamMaps=grid, numFolds=2, seed=1)
    search = search.setEvaluator(MulticlassClassificationEvaluator(metricName="accuracy"))
    found = search.fit(frame)
    named = [(each[bagging.numModels], each[base.regParam]) for each in grid]
    accuracies = dict(zip(named, found.avgMetrics, strict=True))
    assert min(accuracies[1, 0.0], accuracies[2, 0.0]) > max(accuracies[1, 1e6], accuracies[2, 1e6]) + 0.2
    assert len([*tmp_path.iterdir()]) > 4


@pytest.mark.slow
def test_a_bases_outputs_and_thresholds_are_the_ensembles(frame):
    base = tree(predictionCol="class", rawPredictionCol="", probabilityCol="chances").setThresholds([1.0, 0.0])
    model = Bagging(base=base, numModels=2, idCol="id").fit(frame)
    scored = model.transform(frame)
    assert scored.columns == [*frame.columns, "chances", "class"]
    wanted = (vectors(scored, "chances")[:, 1] > 0).astype(float)
    assert (numbers(scored, "class") == wanted).all()


def test_maps_of_two_bases_of_one_class_are_told_apart():
    one, other = torch_base(), torch_base()
    stacking = Stacking(bases=[one, other], runDir="/nowhere")
    maps = [{one.seed: 1, other.seed: 2}, {one.seed: 2, other.seed: 1}]
    assert stacking.copy(maps[0])._map != stacking.copy(maps[1])._map
    assert stacking.copy(maps[0])._map == stacking.copy(dict(reversed(maps[0].items())))._map


@pytest.mark.slow
def test_an_estimator_is_saved_with_its_base(frame, tmp_path):
    bagging = Bagging(base=torch_base(), numModels=3, maxFeatures=0.5, seed=7, voting="hard")
    bagging.write().save(str(tmp_path / "bagging"))
    loaded = Bagging.load(str(tmp_path / "bagging"))
    assert loaded.uid == bagging.uid
    assert (loaded.getNumModels(), loaded.getMaxFeatures(), loaded.getVoting()) == (3, 0.5, "hard")
    assert (loaded.getBase().getEpochs(), loaded.getBase().getModel()) == (2, nets.two_scores)
    one, other = (vectors(each.fit(frame).transform(frame), "rawPrediction") for each in (bagging, loaded))
    assert (one == other).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"base is not set"),
        ({"base": "tree"}, r"base is 'tree'; expected a pyspark.ml Estimator"),
        ({"base": VectorAssembler}, r"expected a pyspark.ml Estimator"),
        (
            {"base": tree, "subsamplingRate": 1.5, "bootstrap": False},
            r"subsamplingRate is 1.5; expected at most 1 without bootstrap",
        ),
        ({"base": tree, "subsamplingRate": 0.0}, r"subsamplingRate is 0.0; expected a number above 0"),
        ({"base": tree, "numModels": 0}, r"numModels is 0; expected at least 1"),
        ({"base": tree, "voting": "loud"}, r"voting is 'loud'"),
        ({"base": tree, "maxFeatures": "cbrt"}, r"maxFeatures is 'cbrt'"),
        ({"base": tree, "maxFeatures": 0}, r"maxFeatures is 0"),
        ({"base": tree, "maxFeatures": 4}, r"maxFeatures is 4, and the data has 3 features"),
        ({"base": torch_base, "maxFeatures": 4}, r"maxFeatures is 4, and the data has 3 features"),
        (
            {"base": tree, "partitioned": True},
            r"partitioned is True.*Tree.*does not train in a task",
        ),
        ({"base": lambda: torch_base(numWorkers=2), "partitioned": True}, r"does not train in a task"),
        ({"base": lambda: torch_base(strategy=AllReduce(), inputCols=["none"])}, r"no column 'none'"),
        ({"base": tree, "idCol": "number"}, r"idCol is 'number', of type double; expected integers"),
        ({"base": lambda: tree(labelCol="none")}, r"labelCol of the base is 'none', which is no column"),
        ({"base": tree, "idCol": "none"}, r"idCol is 'none'; the data has"),
    ],
)
def test_bad_input_is_refused_with_a_reason(frame, given, message):
    with pytest.raises(InvalidInput, match=message):
        Bagging(**{name: value() if callable(value) else value for name, value in given.items()}).fit(frame)
