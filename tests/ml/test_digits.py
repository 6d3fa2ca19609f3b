"""The whole way on scikit-learn's digits: a pipeline, two members, accuracy on held-out rows, what is kept of a run."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from sklearn.datasets import load_digits
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import TorchClassifier, TorchModel
from tests.ml import nets
from tests.sessions import frame

PIXELS = [f"p{index}" for index in range(64)]


@pytest.fixture(scope="module")
def digits(spark):
    """1797 images: a column for each pixel, the label as a double, a quarter of the rows held out."""
    images, labels = load_digits(return_X_y=True)
    columns = {name: images[:, index] / 16 for index, name in enumerate(PIXELS)}
    held_out = np.random.default_rng(0).random(len(labels)) < 0.25
    return frame(columns | {"label": labels.astype(float), "held out": held_out}).cache()


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    """The fitted pipeline and the directory of the run."""
    folder = tmp_path_factory.mktemp("run")
    classifier = TorchClassifier(
        model=nets.digits,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        metrics={"accuracy": MulticlassAccuracy(10, average="micro")},
        validationIndicatorCol="held out",
        numWorkers=2,
        batchSize=64,
        epochs=20,
        runDir=str(folder),
    )
    stages = [VectorAssembler(inputCols=PIXELS, outputCol="features"), classifier]
    return Pipeline(stages=stages).fit(digits), folder


@pytest.fixture
def model(run) -> TorchModel:
    return run[0].stages[1]


def test_held_out_accuracy(run, digits):
    predicted = run[0].transform(digits.where("`held out`"))
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    accuracy = evaluator.evaluate(predicted)
    assert accuracy >= 0.97
    last = run[0].stages[1].history[-1]
    assert last["valid_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert evaluator.setMetricName("logLoss").evaluate(predicted) == pytest.approx(last["valid_loss"], rel=1e-3)


def test_history(model, digits):
    rows = digits.where("not `held out`").count()
    steps = -(-rows // 64)
    assert [row["epoch"] for row in model.history] == list(range(1, 21))
    assert [row["step"] for row in model.history] == [steps * epoch for epoch in range(1, 21)]
    assert [row["samples"] for row in model.history] == [rows * epoch for epoch in range(1, 21)]
    names = {"loss", "valid_loss", "valid_accuracy", "seconds", "rows_per_second"}
    assert all(names <= set(row) for row in model.history)
    assert model.history[-1]["loss"] < 0.1 < 1 < model.history[0]["loss"]


def test_report(model, digits):
    report = model.report
    assert report["rows"] == sum(report["rows_by_rank"]) == digits.count()
    assert len(report["rows_by_rank"]) == 2
    assert 1 <= report["skew"] < 1.01
    assert report["restarts"] == 0
    assert 0 < report["feed_wait_seconds"] < report["seconds"]
    assert 0 < report["train_seconds"] < report["seconds"]
    assert report["rows_per_second"] == pytest.approx(model.history[-1]["samples"] / report["train_seconds"])
    parameters = sum(parameter.numel() for parameter in nets.digits().parameters())
    assert report["bytes"] >= 2 * 4 * parameters * model.history[-1]["step"]


def test_the_runs_directory(run, model):
    folder = run[1]
    files = {"config.json", "history.json", "report.json", "timeline.json"}
    assert {path.name for path in folder.iterdir()} == {"checkpoints", "events", *files}
    assert json.loads((folder / "history.json").read_text()) == model.history
    assert json.loads((folder / "report.json").read_text()) == model.report
    config = json.loads((folder / "config.json").read_text())
    assert (config["class"], config["epochs"], config["inputCols"]) == ("TorchClassifier", 20, ["features"])
    assert config["strategy"].startswith("AllReduce(")


def test_saved_and_loaded(model, run, digits, tmp_path):
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert (loaded.history, loaded.report) == (model.history, model.report)
    assembled = run[0].stages[0].transform(digits.where("p2 > 0.5"))
    assert loaded.transform(assembled).collect() == model.transform(assembled).collect()
