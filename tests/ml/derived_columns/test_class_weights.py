"""Class weights: scikit-learn's numbers, the loss of ``CrossEntropyLoss(weight=...)``, and refusals."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from sparkdl import InvalidInput, ParallelSGD, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ml.derived_columns.class_weights import balanced
from tests.ml import nets, rows
from tests.ml.rows import ARRAYS
from tests.sessions import frame

LABELS = np.random.default_rng(0).choice([0, 1, 3], 500, p=[0.7, 0.25, 0.05])


def test_balanced_weights_are_those_of_scikit_learn():
    classes, counts = np.unique(LABELS, return_counts=True)
    wanted = dict(zip(classes, compute_class_weight("balanced", classes=classes, y=LABELS), strict=True))
    found = balanced(dict(zip(classes.tolist(), map(Fraction, counts.tolist()), strict=True)))
    assert found == [wanted[0], wanted[1], None, wanted[3]]
    assert balanced({}) == []


def test_weights_of_training_rows_in_any_partitions(spark):
    held = np.arange(len(LABELS)) % 4 == 0
    weights = np.random.default_rng(1).uniform(0.1, 2, len(LABELS))
    labels = np.where(np.arange(len(LABELS)) % 100 == 0, 5, LABELS)  # only of validation rows
    data = frame({"features": np.ones((len(LABELS), 1)), "label": labels, "weight": weights, "held": held})
    fit = TorchClassifier(model=nets.scores, classWeights="balanced", weightCol="weight", validationIndicatorCol="held")
    with pytest.warns(UserWarning, match=r"the classes \[5\] have validation rows, but no training rows"):
        read = fit.derived_columns().read(data)
    with pytest.warns(UserWarning, match=r"classes \[5\]"):
        assert fit.derived_columns().read(data.repartition(7)).class_weights == read.class_weights
    masses = np.bincount(labels[~held], weights[~held], 6)
    expected = [mass and masses.sum() / (3 * mass) for mass in masses]
    assert read.class_weights == [pytest.approx(weight, rel=1e-15) if weight else None for weight in expected]
    rows_by_weight = read.frame.select("label", "weight", read.columns.weight.name).collect()
    assert all(row[2] == pytest.approx(row[1] * expected[row[0]], rel=1e-15) for row in rows_by_weight)


@pytest.mark.parametrize("scale", [5e-324, 1e-20, None])
def test_row_weights_of_any_size_count_exactly(spark, scale):
    random, labels = np.random.default_rng(2), np.arange(60) % 3
    sizes = 10.0 ** random.integers(-200, 200, 60) if scale is None else scale
    weights = random.integers(1, 50, 60) * random.uniform(1, 2, 60) * sizes
    totals = {label: sum(map(Fraction, weights[labels == label].tolist())) for label in range(3)}
    data = frame({"features": np.ones((60, 1)), "label": labels, "weight": weights})
    fit = TorchClassifier(model=nets.scores, classWeights="balanced", weightCol="weight")
    for shards in (1, 4):
        found = fit.derived_columns().read(data.repartition(shards)).class_weights
        assert found == [float(sum(totals.values()) / (3 * total)) for total in totals.values()]
    with pytest.raises(InvalidInput, match="one class weigh 1e308 times as much"):
        balanced({0: Fraction(1), 1: Fraction(10) ** 400})


def test_gang_equals_cross_entropy_with_weights(data):
    labels = ARRAYS["label"].astype(int)
    weights = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels).tolist()
    fit = partial(rows.classifier, model=nets.two_scores, epochs=3, batchSize=32)
    found = fit(classWeights="balanced").fit(data)
    assert (found.report["class_weights"], found._trained.signature) == (weights, [([3], "float32")])
    wanted = fit(loss=nn.CrossEntropyLoss(weight=torch.tensor(weights))).fit(data)
    torch.testing.assert_close(found.module().state_dict(), wanted.module().state_dict(), rtol=0, atol=1e-6)
    assert found.history[-1]["loss"] == pytest.approx(wanted.history[-1]["loss"], abs=1e-6)


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"strategy": ParallelSGD(rounds=2), "weightCol": "weight"}, "label"),
        ({"loss": nn.BCEWithLogitsLoss(), "model": nets.column}, "label"),
        ({"loss": nn.CrossEntropyLoss(ignore_index=2)}, "if(row % 5 = 0, 2, label)"),  # ignored labels weigh 1
    ],
)
def test_weights_of_classes_are_weights_of_rows(data, values, label):
    labelled = data.withColumn("label", F.expr(label))
    read = rows.classifier(classWeights=[0.5, 3], **values).derived_columns().read(labelled)
    expected = F.expr(f"{values.get('weightCol', 1)} * element_at(array(0.5D, 3D, 1D), int(label) + 1)")
    assert read.frame.where(~F.col(read.columns.weight.name).eqNullSafe(expected)).count() == 0
    assert read.class_weights == [0.5, 3.0]


ONES = torch.ones(1)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.ones(2))


def weighing(weights="balanced", **values):
    return TorchClassifier(classWeights=weights, **values)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (partial(TorchRegressor, classWeights="balanced"), "TorchRegressor with labelCol='label' has no class indices"),
        (partial(TorchEstimator, loss=nn.NLLLoss(), classWeights=[1, 2]), r"is \[1.0, 2.0\], and TorchEst"),
        (partial(TorchClassifier, labelCol=["a", "b"], classWeights=[1, 2]), r"labelCol=\['a', 'b'\] .*one label col"),
        (partial(weighing, loss=WEIGHTED), r"the loss is CrossEntropyLoss\(weight=..."),
        (partial(weighing, loss=nn.BCEWithLogitsLoss(pos_weight=ONES)), r"BCEWithLogitsLoss\(pos_weight=...\)"),
        (partial(weighing, [1, 2, 3], loss=nn.BCEWithLogitsLoss()), r"3.0\]; expected .* each of the 2 classes"),
        (partial(weighing, [1, 2], numClasses=3), r"classWeights .* each of the 3 classes"),
    ],
)
def test_settings_without_classes_are_refused(estimator, message):
    with pytest.raises(InvalidInput, match=message):
        estimator(model=nets.scores).derived_columns()


@pytest.mark.parametrize(
    ("values", "label", "message"),
    [
        ({}, "if(row = 7, 2, label)", "'label' holds 2; .* from 0 to 1. classWeights has 2 numb"),
        ({"classWeights": "balanced"}, "if(row = 7, 0.5, label)", "'label' holds 0.5; .* from 0 to 99999. pyspark.ml"),
        ({"numClasses": 2}, "if(row = 7, null, label)", "'label' holds null; expected class indices from 0 to 1"),
        ({}, "array(1)", "'label' has type array<int>; expected one class index per row"),
        ({"weightCol": "y"}, "label", "weight column 'y' holds .* values that are no finite num"),
    ],
)
def test_invalid_labels_and_weights_are_refused_before_the_launch(data, values, label, message):
    values = {"model": lambda: pytest.fail("a worker began"), "classWeights": [1, 2]} | values
    with pytest.raises(InvalidInput, match=message):
        rows.classifier(**values).fit(data.withColumn("label", F.expr(label)))
