"""One fit on scikit-learn's digits, in a pipeline: accuracy, history, report, run directory."""

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

from sparkdl import TorchClassifier
from tests.ml import nets
from tests.sessions import frame

PIXELS = [f"p{index}" for index in range(64)]


def test_digits(spark, tmp_path):
    images, labels = load_digits(return_X_y=True)
    columns = {name: images[:, index] / 16 for index, name in enumerate(PIXELS)}
    valid = np.random.default_rng(0).random(len(labels)) < 0.25
    digits = frame(columns | {"label": labels.astype(float), "valid": valid}).cache()
    folder = tmp_path / "run"
    classifier = TorchClassifier(
        model=nets.digits,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        metrics={"accuracy": MulticlassAccuracy(10, average="micro")},
        validationIndicatorCol="valid",
        numWorkers=2,
        batchSize=64,
        epochs=20,
        runDir=str(folder),
    )
    fitted = Pipeline(stages=[VectorAssembler(inputCols=PIXELS, outputCol="features"), classifier]).fit(digits)
    model, rows = fitted.stages[1], int((~valid).sum())
    history, report = model.history, model.report

    predicted, evaluator = fitted.transform(digits.where("valid")), MulticlassClassificationEvaluator()
    accuracy = evaluator.setMetricName("accuracy").evaluate(predicted)
    assert accuracy >= 0.97
    assert history[-1]["valid_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    log_loss = evaluator.setMetricName("logLoss").evaluate(predicted)
    assert log_loss == pytest.approx(history[-1]["valid_loss"], rel=1e-3)

    steps = -(-rows // 64)
    assert [(row["epoch"], row["step"], row["samples"]) for row in history] == [
        (epoch, steps * epoch, rows * epoch) for epoch in range(1, 21)
    ]
    assert all({"seconds", "rows_per_second"} <= set(row) for row in history)
    assert history[-1]["loss"] < 0.1 < 1 < history[0]["loss"]

    assert report["rows"] == sum(report["rows_by_rank"]) == len(labels)
    assert (len(report["rows_by_rank"]), report["restarts"]) == (2, 0)
    assert 1 <= report["skew"] < 1.01
    assert 0 < report["feed_wait_seconds"] < report["seconds"]
    assert 0 < report["train_seconds"] < report["seconds"]
    assert report["rows_per_second"] == pytest.approx(history[-1]["samples"] / report["train_seconds"])
    parameters = sum(parameter.numel() for parameter in nets.digits().parameters())
    assert report["bytes"] >= 2 * 4 * parameters * history[-1]["step"]

    files = {"config.json", "history.json", "report.json", "timeline.json"}
    assert {path.name for path in folder.iterdir()} == {"checkpoints", "events", *files}
    assert json.loads((folder / "history.json").read_text()) == history
    config = json.loads((folder / "config.json").read_text())
    assert (config["class"], config["epochs"], config["inputCols"]) == ("TorchClassifier", 20, ["features"])
    assert config["strategy"].startswith("AllReduce(")
