"""Bagging: members on draws of rows and features, their vote, invalid settings, and events of members."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import DecisionTreeClassifier, NaiveBayes
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F

from sparkdl import AllReduce, Bagging, InvalidInput, ParallelSGD, TorchClassifier
from sparkdl.ensembles.resampling.bootstrap import Bootstrap, member_seed
from sparkdl.ml.report import Report
from sparkdl.telemetry.event_reader import read_events
from tests.ensembles.fakes import ARRAYS, ROWS, X, Y, outputs
from tests.ml import nets


def network(**given) -> TorchClassifier:
    wanted = {"model": nets.two_scores, "optimizer": partial(torch.optim.SGD, lr=0.1), "batchSize": 16, "epochs": 2}
    return TorchClassifier(**{**wanted, "idCol": "row", **given})


tree = partial(DecisionTreeClassifier, maxDepth=3)
bayes = partial(NaiveBayes, modelType="gaussian")  # a fit takes a third of the time


def ends(folder: Path) -> list[dict]:
    return [event.payload for event in read_events(folder / "events") if event.kind == "member"]


@pytest.mark.slow
def test_vote_is_the_mean_of_different_members_and_fits_repeat(data, tmp_path, capsys):
    bagging = Bagging(base=network(), numModels=3, seed=5, disagreementCol="apart", maxFeatures=2)
    bagging.save(str(tmp_path / "bagging"))
    model, again = bagging.fit(data), Bagging.load(str(tmp_path / "bagging")).fit(data)
    assert model.transform(data).columns == [*data.columns, "rawPrediction", "probability", "prediction", "apart"]
    chances = [outputs(member, data, "probability")[0] for member in model.models]
    assert np.allclose(outputs(model, data, "probability")[0], np.mean(chances, 0), atol=1e-6)
    assert [(row["member"], row["seed"]) for row in model.history] == [(at, member_seed(5, at)) for at in range(3)]
    assert (model.uid, model.report["trained"], model.report["restored"]) == (bagging.uid, [0, 1, 2], [])
    assert model.report["events_dropped"] == 0
    assert "3/3" in capsys.readouterr().err
    states = [[member.module().state_dict() for member in each.models] for each in (model, again)]
    for one, other in zip(*states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert int(one["seen_0"].sum()) == 2
    assert not torch.equal(states[0][0]["module.weight"], states[0][1]["module.weight"])
    assert len({tuple(state["seen_0"].tolist()) for state in states[0]}) > 1


@pytest.mark.slow
def test_members_that_the_driver_fits_get_draws_and_features(data):
    counts = Bootstrap(1.0, True, member_seed(0, 0)).counts(np.arange(ROWS))
    linear = LinearRegression(labelCol="y", solver="normal")
    with pytest.warns(UserWarning, match="voting is set, but only classifiers use it; this regressor ignores it"):
        model = Bagging(base=linear, numModels=1, idCol="row", voting="soft").fit(data)
    x = np.c_[X, np.ones(ROWS)]
    wanted = np.linalg.lstsq(np.repeat(x, counts, 0), np.repeat(Y, counts), rcond=None)[0]
    assert np.allclose([*model.models[0].coefficients, model.models[0].intercept], wanted, atol=1e-8)
    assert model.rule == "mean"
    rounds = network(strategy=ParallelSGD(rounds=2), numWorkers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [member] = Bagging(base=rounds, numModels=1).fit(data).models
    assert member.report["rows"] == counts.sum()
    assembler = VectorAssembler(inputCols=["features"], outputCol="assembled")
    base = Pipeline(stages=[assembler, tree().setFeaturesCol("assembled")])
    bagging = Bagging(base=base, numModels=2, idCol="row", subsamplingRate=0.6, maxFeatures=0.7, parallelism=2)
    fitted = Pipeline(stages=[bagging]).fit(data)
    assert (outputs(fitted, data, "prediction")[0] == ARRAYS["label"]).mean() > 0.7
    assert fitted.stages[0].rule == "soft"


@pytest.mark.slow
def test_classes_missing_in_a_draw_are_classes_of_the_ensemble(spark):
    """One row of class 2: most members know two classes only."""
    rows = [([float(index % 7), 1.0], float(index % 2), index) for index in range(60)] + [([99.0, 1.0], 2.0, 60)]
    frame = spark.createDataFrame(rows, "features array<double>, label double, row long")
    frame = frame.withColumn("features", array_to_vector("features")).cache()
    model = Bagging(base=bayes(), numModels=5, idCol="row", subsamplingRate=0.7, seed=1).fit(frame)
    assert len({member.numClasses for member in model.models}) == 2
    (chances,) = outputs(model, frame, "probability")
    assert chances.shape == (61, 3)
    assert np.allclose(chances.sum(1), 1)
    assert Bagging(base=bayes(), numModels=5, idCol="row", voting="hard").fit(frame).transform(frame).count() == 61
    network_of_three = network(model=partial(torch.nn.Linear, 2, 3), epochs=1)
    model = Bagging(base=network_of_three, numModels=2, voting="hard").fit(frame)
    assert (model.rule, outputs(model, frame, "probability")[0].shape) == ("hard", (61, 3))


@pytest.mark.slow
def test_partitions_and_stored_members(data, tmp_path):
    bagging = Bagging(base=network(epochs=1), partitioned=True, numModels=3)
    with pytest.warns(UserWarning, match="partitioned=True ignores numModels=3"):
        model = bagging.fit(data.repartition(4))
    assert sum(member.report["rows"] for member in model.models) == ROWS
    assert len(model.models) == 4
    base = tree(predictionCol="class", rawPredictionCol="", probabilityCol="chances").setThresholds([1.0, 0.0])
    stored = Bagging(base=base, idCol="row", runDir=str(tmp_path), bootstrap=False, subsamplingRate=0.8, seed=2)
    first, more = (stored.setNumModels(count).fit(data) for count in (1, 2))
    assert (more.report["trained"], more.report["restored"]) == ([1], [0])
    assert more.history[0]["seconds"] == first.history[0]["seconds"]
    seconds = {end["member"]: end["seconds"] for end in ends(tmp_path) if not end.get("restored")}
    assert seconds == {row["member"]: row["seconds"] for row in more.history}
    assert more.transform(data).columns == [*data.columns, "chances", "class"]
    classes, chances = outputs(more, data, "class", "chances")
    assert (classes == (chances[:, 1] > 0)).all()
    events = sorted((tmp_path / "events").iterdir())
    for changed, name in ((stored.copy().setSeed(3), "seed"), (stored, "rows")):
        with pytest.raises(InvalidInput, match=name):
            changed.fit(data.where("row > 3") if name == "rows" else data)
    assert sorted((tmp_path / "events").iterdir()) == events


@pytest.mark.parametrize(
    ("base", "given", "message"),
    [
        (None, {}, r"base is not set"),
        (VectorAssembler, {}, r"expected a pyspark.ml Estimator"),
        (tree, {"subsamplingRate": 1.5, "bootstrap": False}, r"subsamplingRate is 1.5; expected at most 1 without"),
        (tree, {"subsamplingRate": 0.0}, r"subsamplingRate is 0.0; expected a finite number above 0"),
        (tree, {"voting": "loud"}, r"voting is 'loud'"),
        (tree, {"maxFeatures": 4}, r"maxFeatures is 4, and the data has 3 features"),
        (network, {"maxFeatures": 4}, r"maxFeatures is 4, and the data has 3 features"),
        (tree, {"partitioned": True}, r"partitioned is True.*Tree.*does not train in a task"),
        (lambda: network(numWorkers=2), {"partitioned": True}, r"does not train in a task"),
        (lambda: network(strategy=AllReduce(), inputCols=["none"]), {}, r"no column 'none'"),
        (tree, {"idCol": "y"}, r"idCol is 'y', of type double; expected integers"),
        (lambda: tree(labelCol="none"), {}, r"labelCol of the base is 'none'; the data has"),
        (tree, {"idCol": "none"}, r"idCol is 'none'; the data has"),
    ],
)
def test_invalid_settings_raise(data, base, given, message):
    with pytest.raises(InvalidInput, match=message):
        Bagging(**given | ({} if base is None else {"base": base()})).fit(data)


def test_null_ids_raise(data):
    rows = data.withColumn("row", F.when(F.col("row") > 3, F.col("row")))
    with pytest.raises(Exception, match="idCol 'row' is null in a row; expected an integer in each"):
        Bagging(base=tree(), numModels=1, idCol="row").fit(rows)


@pytest.mark.slow
def test_members_in_tasks_emit_epochs_and_ends(data, tmp_path):
    bagging = Bagging(base=network(), numModels=3, runDir=str(tmp_path))
    fitted = bagging.fit(data)
    events = read_events(tmp_path / "events")
    for index in range(3):
        own = [event for event in events if event.rank == index]
        assert [event.payload["epoch"] for event in own if event.kind == "epoch"] == [1, 2]
        assert {"step", "span", "progress", "member"} <= {event.kind for event in own}
    expected = [{"member": index, "seconds": row["seconds"]} for index, row in enumerate(fitted.history)]
    assert sorted(ends(tmp_path), key=lambda end: end["member"]) == expected
    assert [event.payload for event in events if event.kind == "members"] == [{"count": 3}]
    assert [event.kind for event in events if event.kind in ("begin", "end")] == ["begin", "end"]
    summary, found = fitted.summary, fitted.evaluate(data)
    assert (summary.unit, summary.epochs, summary.metrics["members trained"]) == ("member", 3, 3)
    assert (found.rows, found.ignored) == (ROWS, 0)
    assert isinstance(fitted.report, Report)
    assert json.loads((tmp_path / "history.json").read_text()) == fitted.history
    assert json.loads((tmp_path / "report.json").read_text()) == fitted.report
    assert json.loads((tmp_path / "config.json").read_text())["numModels"] == 3
    assert Path(fitted.report.html()).exists()
    bagging.setNumModels(4).fit(data)
    assert [end["member"] for end in ends(tmp_path) if end.get("restored")] == [0, 1, 2]
    assert sorted(end["member"] for end in ends(tmp_path) if not end.get("restored")) == [0, 1, 2, 3]
