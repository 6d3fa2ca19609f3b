"""Figures of models, and their text; tests/cli/test_evaluate.py has the figures of saved models."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from sklearn import metrics as right
from torchmetrics import MeanAbsoluteError

from sparkdl import InvalidInput, TorchClassifier, TorchEstimator, TorchModel
from sparkdl.io.weights import pack
from sparkdl.ml.evaluation import MOST_CLASSES, ClassifierMetrics, LossMetrics, MultilabelMetrics, RegressorMetrics
from sparkdl.ml.report import TrainingSummary
from tests.ml import nets
from tests.ml.persistence.test_reader_writer import edited
from tests.sessions import frame

HALF = {(0, 0): 1, (0, 1): 1}


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


@pytest.mark.parametrize(
    ("measured", "first", "order"),
    [
        (ClassifierMetrics(HALF, 0.25), "accuracy 0.5000 (1 of 2 rows)", "accuracy macro_f1 log_loss"),
        (MultilabelMetrics(2, 0.5, [1.0], [0.75], 0.6), "subset accuracy 0.5000 (2 rows)", "subset_accuracy micro_f1"),
        (RegressorMetrics(2, 0.5, 0.25, None), "root mean squared error 0.5 (2 rows)", "rmse mae r2 rows"),
        (LossMetrics(0.5, {"mae": 0.25}, 2), "loss 0.5", "loss mae rows"),
    ],
)
def test_what_matters_most_is_printed_first(measured, first, order):
    assert str(measured).splitlines()[0] == first
    assert re.findall(r"(\w+)=", repr(measured))[: len(order.split())] == order.split()


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


@pytest.mark.parametrize(
    ("kind", "label", "message"),
    [
        ("estimator", "y", "the loss of this TorchEstimator's model is unknown: fit did not train it"),
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


def test_loss_of_an_estimator_equals_that_of_its_validation(spark, tmp_path):
    """Also with assembled inputs, several labels, a row without one of them, and after a save."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    rows = frame({"a": x, "y": x[:, 0], "z": x[:, 1], "held": np.arange(40) % 4 == 0})
    rows = rows.withColumn("b", F.col("a")[2])
    given = {"inputCols": ["a", "b"], "assembleInputs": True, "labelCol": ["y", "z"], "validationIndicatorCol": "held"}
    given |= {"loss": torch.nn.SmoothL1Loss(beta=0.5), "metrics": {"mae": MeanAbsoluteError()}, "epochs": 2}
    given |= {"model": partial(torch.nn.Linear, 4, 2), "numWorkers": 1, "batchSize": 10, "keepBest": False}
    model = TorchEstimator(**given).fit(rows)
    model.save(str(tmp_path / "model"))
    held, last = rows.where("held").union(rows.limit(1).withColumn("y", F.lit(None))), model.history[-1]
    for one in (model, TorchModel.load(str(tmp_path / "model"))):
        found = one.evaluate(held)
        assert (found.loss, found.metrics["mae"]) == pytest.approx((last["valid_loss"], last["valid_mae"]), rel=1e-6)
        assert found.rows == 10
    touch = ["touch", str(tmp_path / "pwned")]
    for forged in (
        {"dict": {"loss": {"partial": "os:system", "args": [{"value": " ".join(touch)}], "kwargs": {}}}},
        {"dict": {"loss": {"make": "subprocess:Popen", "kwargs": {"args": {"value": touch}}}}},
        {"loss": "os:system", "metrics": {}},
    ):
        edited(tmp_path / "model", evaluated=forged)
        with pytest.raises(InvalidInput, match=r"names (os|subprocess)[.:]|loss is 'os:system'"):
            TorchModel.load(str(tmp_path / "model")).evaluate(held)
    assert not (tmp_path / "pwned").exists()
    with pytest.raises(InvalidInput, match="there is no label column 'gone'"):
        model.copy({model.labelCol: "gone"}).evaluate(rows)
    model.evaluated = {"loss": lambda output, target: (output - target) ** 2, "metrics": {}}
    model.copy({model.labelCol: "z"}).save(str(tmp_path / "other"))
    with pytest.raises(InvalidInput, match="save found no name for its loss or a metric"):
        TorchModel.load(str(tmp_path / "other")).evaluate(rows)


ROWS = [{"epoch": 1, "step": 5, "loss": 0.5, "seconds": 1.0}, {"epoch": 2, "step": 10, "loss": 0.25, "seconds": 1.0}]
MEMBERS = [{"member": 0, "loss": 0.5}, {"member": 1, "loss": 0.25}]
FIT = {"seconds": 9.0, "rows": 40, "validation_rows": 10, "train_seconds": 2.0, "device": "cpu", "startup_seconds": 7.0}


@pytest.mark.parametrize(
    ("history", "report", "end"),
    [
        (ROWS, FIT | {"best_epoch": 1, "keeps_best": True}, "epochs 2, best epoch 1, loss 0.5"),
        (ROWS, FIT | {"best_epoch": 1, "keeps_best": False}, "epochs 2, loss 0.25"),
        (ROWS, FIT | {"best_epoch": None, "keeps_best": True}, "epochs 2, loss 0.25"),
        ([{"round": 1, "objective": 2.0, "seconds": 1.0}], FIT, "rounds 1, objective 2"),
        (MEMBERS[:1], FIT | {"oob_score": 0.75}, "members 1, oob_score 0.75"),
        (MEMBERS, FIT | {"best_member": 0}, "best member 0, loss 0.5"),
        ([{"candidate": 0, "best": True, "metric": 0.5}], FIT, "candidates 1, best candidate 0, metric 0.5"),
    ],
)
def test_summary_is_of_the_weights_that_the_model_has(history, report, end):
    text = ", ".join(re.sub(" {2,}", " ", line) for line in str(TrainingSummary.of(history, report, 7)).splitlines())
    begin = "training rows 30, validation rows 10, parameters 7, device cpu, seconds 9, start-up seconds 7, training"
    assert text.startswith(f"{begin} seconds 2, ")
    assert text.endswith(f", {end}")


def test_summary_has_the_figures_of_the_fit(spark):
    rows = frame({"features": np.zeros((40, 3)), "label": np.arange(40) % 3})
    model = TorchClassifier(model=nets.scores, numWorkers=1, batchSize=10, epochs=2, validationFraction=0.25).fit(rows)
    summary = model.summary
    assert (summary.rows, summary.parameters, summary.epochs, summary.device) == (40, 12, 2, "cpu")
    assert summary.validation_rows == rows.count() - model.history[0]["samples"]
    assert sum(model.report["startup"].values()) == pytest.approx(summary.startup_seconds, abs=0.01)
    assert min(model.report["startup"][phase] for phase in ("session", "workers", "feed")) > 0
    assert summary.seconds > summary.startup_seconds > 0
    assert summary.seconds > summary.train_seconds > 0
    assert (summary.best_epoch, summary.last) == (model.report["best_epoch"], model.history[-1])
    with pytest.raises(InvalidInput, match="no estimator trained it"):
        assert TorchModel(factory=nets.scores, weights=pack(nets.scores())).summary
