"""Figures of models, and their text; tests/cli/test_evaluate.py has the figures of saved models."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from sklearn import metrics as right

from sparkdl import TorchClassifier, TorchModel
from sparkdl.cli.saved_models import output_columns
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.evaluation import MOST_CLASSES, ClassifierMetrics, held_out
from tests.ml import nets
from tests.sessions import frame


def test_scores():
    text = ClassifierMetrics({(0, 0): 3, (0, 1): 1, (2, 2): 100}).scores()
    assert text.splitlines() == [
        "accuracy 0.9904 (103 of 104 rows)",
        "",
        "confusion: a row for each label, a column for each prediction",
        "         0    1    2",
        "    0    3    1    .",
        "    1    .    .    .",
        "    2    .    .  100",
    ]
    assert ClassifierMetrics({}).scores() == "accuracy 0.0000 (0 of 0 rows), 0 classes"
    many = {(index, index): 1 for index in range(MOST_CLASSES + 1)}
    assert ClassifierMetrics(many).scores() == "accuracy 1.0000 (21 of 21 rows), 21 classes"


def test_metrics_of_a_model_equal_scikit_learns(spark):
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 3)).astype(np.float32)
    labels = np.r_[random.integers(0, 2, 59), 1]
    arrays = {"features": x, "y": labels, "value": x.sum(1) + labels, "probability": np.zeros(60)}
    rows = frame(arrays).withColumn("y", F.when(F.col("features")[0] < 2, F.col("y")))  # null without a label
    module = torch.nn.Linear(3, 2)
    model = TorchModel(factory=partial(torch.nn.Linear, 3, 2), weights=pack(module), kind="classifier").setLabelCol("y")
    found, known = model.evaluate(rows.drop("probability")), x[:, 0] < 2
    chances = torch.from_numpy(x[known]) @ module.weight.T + module.bias
    chances = torch.softmax(chances, 1)[:, 1].detach().numpy()
    assert found.rows == known.sum()
    assert found.accuracy == pytest.approx(right.accuracy_score(labels[known], chances > 0.5))
    assert found.log_loss == pytest.approx(right.log_loss(labels[known], chances), rel=1e-5)
    assert found.auc == pytest.approx(right.roc_auc_score(labels[known], chances))
    silent = model.copy().setProbabilityCol("").setRawPredictionCol("")
    assert silent.evaluate(rows).figures() == found.figures() | {"log_loss": None, "auc": None}
    line = TorchModel(factory=nets.column, weights=pack(nets.column()), kind="regressor").setLabelCol("value")
    expected = nets.column()(torch.from_numpy(x)).detach().numpy().ravel()
    assert line.evaluate(rows).r2 == pytest.approx(right.r2_score(arrays["value"], expected), rel=1e-5)


@pytest.mark.parametrize("ignored", [-100, 255, 2, None])
def test_ignored_label_counts_nowhere(spark, tmp_path, ignored):
    random = np.random.default_rng(2)
    x = random.normal(size=(40, 3)).astype(np.float32)
    labels = np.r_[random.integers(0, 2, 30), [ignored or 7] * 10]
    model = TorchModel(factory=nets.two_scores, weights=pack(torch.nn.Linear(3, 2)), kind="classifier", ignored=ignored)
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    found = loaded.evaluate(frame({"features": x, "label": labels}))
    if ignored is None:  # a label of no class is wrong
        assert (found.rows, found.ignored, found.accuracy <= 0.75) == (40, 0, True)
        return
    expected = model.evaluate(frame({"features": x[:30], "label": labels[:30]})).figures()
    assert found.figures() == {**expected, "log_loss": pytest.approx(expected["log_loss"]), "ignored": 10}
    assert f"of 30 rows, 10 ignored)\nmacro F1 {found.macro_f1:.4f}" in found.text()
    printed = held_out(
        loaded.transform(frame({"features": x, "label": labels})), "label", output_columns(loaded), classes=True
    )
    assert printed == f"held-out accuracy {found.accuracy:.4f}"


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        ("estimator", "y", "has no metrics of its own; expected the model of a TorchClassifier"),
        ("classifier", ["y", "z"], r"labelCol is \['y', 'z'\]; expected one column"),
        ("classifier", None, "labelCol is None; expected one column"),
        ("classifier", "gone", "there is no label column 'gone'; the rows have 'features', 'y'"),
        ("multilabel", ["y", "gone"], "there is no label column 'gone'; the rows have 'features', 'y'"),
    ],
)
def test_rows_that_cannot_be_evaluated_raise(spark, kind, label, message):
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()), kind=kind).setLabelCol(label)
    with pytest.raises(InvalidInput, match=message):
        model.evaluate(frame({"features": np.zeros((2, 3)), "y": np.zeros(2)}))


def test_summary_has_the_figures_of_the_fit(spark):
    rows = frame({"features": np.zeros((40, 3)), "label": np.arange(40) % 3})
    model = TorchClassifier(model=nets.scores, numWorkers=1, batchSize=10, epochs=2, validationFraction=0.25).fit(rows)
    summary = model.summary
    assert (summary.rows, summary.parameters, summary.epochs) == (40, 12, 2)
    assert summary.seconds > summary.startup_seconds > 0
    assert summary.seconds > summary.train_seconds > 0
    assert (summary.best_epoch, summary.last) == (model.report["best_epoch"], model.history[-1])
    assert [line.split()[0] for line in str(summary).splitlines()][:3] == ["rows", "parameters", "seconds"]
    with pytest.raises(InvalidInput, match="no estimator trained it"):
        assert TorchModel(factory=nets.scores, weights=pack(nets.scores())).summary
