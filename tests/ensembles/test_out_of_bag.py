"""The out-of-bag score: equal to votes computed by hand, near a held-out score, and kept with the model."""

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import NaiveBayes
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Bagging, EnsembleModel, InvalidInput, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, member_seed
from tests.ensembles.fakes import ARRAYS, ROWS, Y, linear, outputs
from tests.ml import nets

ONES, TRAINED = np.ones(ROWS), np.arange(ROWS) % 5 != 0
WEIGHTS = np.arange(ROWS) % 4 / 2.0  # every fourth row has no weight
SGD = partial(torch.optim.SGD, lr=0.1)

bayes = partial(NaiveBayes, modelType="gaussian")
network = partial(TorchClassifier, optimizer=SGD, batchSize=16, epochs=2, inputCols=["x"])
several = partial(network, model=linear, labelCol="several")
line = partial(LinearRegression, labelCol="y", solver="normal")
regressor = partial(TorchRegressor, model=partial(nn.Linear, 3, 1), optimizer=SGD, labelCol="y", inputCols=["x"])


def piped():
    assembler = VectorAssembler(inputCols=["features"], outputCol="assembled")
    return Pipeline(stages=[assembler, bayes(featuresCol="assembled", labelCol="several")])


@pytest.fixture(scope="module")
def weighted(data):
    """The rows in one partition, so that Spark numbers them as ``row``, with validation rows and weights."""
    row = F.col("row")
    return data.withColumns({"held": row % 5 == 0, "w": row % 4 / 2.0}).coalesce(1).cache()


def out_of_bag(bagging):
    """Whether members did not draw rows, ``[members, rows]``, by NumPy."""
    rate, replace, seed = bagging.getSubsamplingRate(), bagging.getBootstrap(), bagging.getSeed()
    seeds = [member_seed(seed, index) for index in range(bagging.getNumModels())]
    return np.stack([Bootstrap(rate, replace, one).counts(np.arange(ROWS)) == 0 for one in seeds])


def predictions(bagging, model, rows):
    """Predictions by the members that did not draw a row, by NumPy; NaN for a row that all drew."""
    voters = out_of_bag(bagging)
    name = "probability" if model.rule == "soft" else "prediction"
    each = np.stack([outputs(member, rows, name)[0] for member in model.models])
    if model.rule == "mean":
        with np.errstate(invalid="ignore"):
            return np.where(voters, each, 0).sum(0) / voters.sum(0)
    votes = each if model.rule == "soft" else np.eye(3)[each.astype(int)]
    return np.where(voters.any(0), (votes * voters[..., None]).sum(0).argmax(1), np.nan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "given", "weights"),  # of rows in the score
    [
        (piped, {"idCol": "row"}, ONES),
        (partial(bayes, probabilityCol="", labelCol="several"), {"maxFeatures": 2}, ONES),
        (
            partial(several, validationIndicatorCol="held", weightCol="w"),
            {"disagreementCol": "apart"},
            WEIGHTS * TRAINED,
        ),
        (
            partial(several, loss=nn.CrossEntropyLoss(ignore_index=2), idCol="row"),
            {"voting": "hard", "seed": 3, "maxFeatures": 2},
            ONES * (ARRAYS["several"] != 2),
        ),
        (partial(line, weightCol="w"), {"bootstrap": False, "subsamplingRate": 0.6}, WEIGHTS),
    ],
    ids=["soft", "hard", "soft in tasks", "hard in tasks", "mean"],
)
def test_score_equals_votes_by_hand(weighted, base, given, weights):
    bagging = Bagging(base=base(), numModels=3, oobScore=True, **given)
    with pytest.warns(UserWarning, match="no out-of-bag prediction: every member drew them.* numModels is 3"):
        model = bagging.fit(weighted)
    predicted, labels = predictions(bagging, model, weighted), Y if model.rule == "mean" else ARRAYS["several"]
    w = np.where(np.isnan(predicted), 0, weights)
    assert model.report["oob_rows"] == (w > 0).sum() < ROWS
    if model.rule == "mean":
        mean = np.average(labels, weights=w)
        errors, total = (np.sum(w[w > 0] * (labels - other)[w > 0] ** 2) for other in (predicted, mean))
        expected = 1 - errors / total
    else:
        expected = np.average(predicted == labels, weights=w)
    assert model.oobScore == pytest.approx(expected, abs=1e-9)
    assert 0 < model.oobScore < 1


@pytest.mark.slow
def test_stored_members_give_the_same_score_which_is_saved(data, tmp_path):
    base = regressor(validationFraction=0.2, idCol="row", epochs=3)
    bagging = Bagging(base=base, numModels=3, runDir=str(tmp_path / "run"))
    assert bagging.fit(data).oobScore is None
    with pytest.warns(UserWarning, match="no out-of-bag prediction"):
        model = bagging.setNumModels(4).setOobScore(True).fit(data)
    assert (model.report["trained"], model.report["restored"]) == ([3], [0, 1, 2])
    marked = base.derived_columns().with_validation(data)
    held = marked.frame.orderBy("row").toPandas()[marked.columns.validation.name].to_numpy()
    predicted = predictions(bagging, model, data)
    rows = ~held & ~np.isnan(predicted)
    assert 0 < held.sum() < ROWS / 2
    expected = 1 - np.sum((Y - predicted)[rows] ** 2) / np.sum((Y[rows] - Y[rows].mean()) ** 2)
    assert (model.oobScore, model.report["oob_rows"]) == (pytest.approx(expected, abs=1e-6), rows.sum())
    model.save(str(tmp_path / "model"))
    loaded = EnsembleModel.load(str(tmp_path / "model"))
    assert (loaded.oobScore, loaded.report["oob_rows"]) == (model.oobScore, rows.sum())
    assert loaded.copy().oobScore == model.oobScore
    assert EnsembleModel(model.models, rule="mean").oobScore is None


@pytest.mark.parametrize(
    ("given", "labels", "message", "rows"),
    [
        ({"subsamplingRate": 12.0}, "y", "120 of 120 training rows have no out-of-bag prediction", 0),
        ({"subsamplingRate": 0.1}, "1.0D", "labels of all .* rows are equal", None),
    ],
)
def test_scores_that_are_not_defined_are_none_with_a_warning(data, given, labels, message, rows):
    bagging = Bagging(base=line(labelCol="target"), numModels=1, oobScore=True, idCol="row", **given)
    with pytest.warns(UserWarning, match=message):
        model = bagging.fit(data.withColumn("target", F.expr(labels)))
    assert model.oobScore is None
    assert rows is None or model.report["oob_rows"] == rows


@pytest.mark.parametrize(
    ("base", "given", "message"),
    [
        (bayes, {"bootstrap": False}, r"no row is out of bag: with bootstrap=False and subsamplingRate=1"),
        (partial(network, model=nets.two_scores), {"partitioned": True}, r"with partitioned=True members draw no rows"),
        (partial(TorchEstimator, model=linear), {}, r"oobScore is True, and the base is a TorchEstimator"),
        (partial(LinearRegression, labelCol="none"), {}, r"labelCol is 'none'; the data has"),
        (partial(LinearRegression, labelCol="x"), {}, r"labelCol is 'x', of type array<double>; expected numbers"),
        (partial(LinearRegression, labelCol="y", weightCol="none"), {}, r"weightCol is 'none'; the data has"),
    ],
)
def test_invalid_settings_raise_before_the_fit(data, monkeypatch, base, given, message):
    monkeypatch.setattr(Bagging, "running", None)
    with pytest.raises(InvalidInput, match=message):
        Bagging(base=base(), oobScore=True, **given).fit(data)
