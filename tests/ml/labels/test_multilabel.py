"""Independent labels: the four bits of the digit in an image."""

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from sklearn import metrics as right
from sklearn.datasets import load_digits
from torch import nn

from sparkdl import InvalidInput, ParallelSGD, TorchClassifier, TorchEstimator, TorchModel
from sparkdl.io.weights import pack
from tests.ml import nets
from tests.sessions import frame

BITS = ["one", "two", "four", "eight"]
MULTI = {"multiLabel": True, "labelCol": "y", "inputCols": ["x"]}


def columns(rows, *names):
    values = [np.array([list(row[name]) for row in rows]) for name in names]
    return values if len(values) > 1 else values[0]


@pytest.mark.slow
def test_bits_of_digits(spark, tmp_path):
    """The labels are four columns in training, and columns or an array in the evaluation."""
    images, numbers = load_digits(return_X_y=True)
    bits = (numbers[:, None] >> np.arange(4)) & 1
    held_out = np.random.default_rng(0).random(len(numbers)) < 0.25
    separate = dict(zip(BITS, bits.T, strict=True))
    digits = frame({"features": images / 16, "bits": bits, "held_out": held_out, **separate}).cache()
    network = partial(nets.mlp, 64, 64, outputs=4)
    settings = {"learningRate": 0.01, "batchSize": 64, "epochs": 2, "numWorkers": 2}
    estimator = TorchClassifier(model=network, labelCol=BITS, multiLabel=True, **settings)
    fitted = estimator.fit(digits.where("not held_out"))
    fitted.write().save(str(tmp_path / "model"))
    model = TorchModel.load(str(tmp_path / "model"))
    assert model.numLabels == 4

    scored = model.transform(digits.where("held_out"))
    assert [field.dataType.simpleString() for field in scored.schema][-3:] == ["vector", "vector", "array<double>"]
    assert scored.schema["probability"].metadata == {"ml_attr": {"num_attrs": 4}}
    rows = scored.collect()
    features, bits, raw = columns(rows, "features", "bits", "rawPrediction")
    chances, predicted = columns(rows, "probability", "prediction")
    with torch.inference_mode():
        scores = model.module()(torch.from_numpy(features).float())
    np.testing.assert_allclose(raw, scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(chances, torch.sigmoid(scores), atol=1e-6)
    np.testing.assert_array_equal(predicted, chances > 0.5)

    metrics = model.evaluate(digits.where("held_out"))
    assert metrics.rows == len(rows)
    assert metrics.subset_accuracy == pytest.approx(right.accuracy_score(bits, predicted))
    np.testing.assert_allclose(metrics.accuracy, (predicted == bits).mean(0))
    np.testing.assert_allclose(metrics.f1, right.f1_score(bits, predicted, average=None))
    for average in ("micro", "macro"):
        expected = right.f1_score(bits, predicted, average=average)
        assert metrics.figures()[f"{average}_f1"] == pytest.approx(expected)
    assert metrics.text().splitlines()[0] == f"subset accuracy {metrics.subset_accuracy:.4f} ({len(rows)} rows)"
    assert model.copy().setLabelCol("bits").evaluate(digits.where("held_out")) == metrics

    local = model.predict(features.astype(np.float32))
    np.testing.assert_allclose(np.stack(list(local["probability"])), chances, atol=1e-6)
    assert model.predictor().output_types[0] == ("prediction", "double", 1)

    eager = model.copy({model.thresholds: [0.5, 0.01, 0.99, 0.0]}).transform(digits.where("held_out"))
    moved = columns(eager.collect(), "prediction")
    np.testing.assert_array_equal(moved, chances > [0.5, 0.01, 0.99, 0.0])
    assert (moved != predicted).any(0).tolist() == [False, True, True, True]


def untrained(factory=nets.scores, **others):
    model = TorchModel(factory=factory, weights=pack(factory()), kind="multilabel", **others)
    return model._set(inputCols=["x"], labelCol=["a", "b", "c"])


def test_rounds_train_labels_of_an_array_column_to_probabilities(spark):
    """``nn.BCELoss`` needs a module that returns probabilities; labels may be fractions."""
    x = np.random.default_rng(1).normal(size=(60, 3))
    rows = frame({"x": x, "y": np.where(x[:, :2] > 0, 0.9, 0.2)})
    module = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())
    strategy = ParallelSGD(shard_batch_size=8, rounds=1)
    settings = {"model": module, "loss": nn.BCELoss(), "learningRate": 0.1, "numWorkers": 2, "strategy": strategy}
    model = TorchClassifier(**MULTI, **settings).fit(rows)
    raw, chances, predicted = columns(model.transform(rows).collect(), "rawPrediction", "probability", "prediction")
    np.testing.assert_array_equal(raw, chances)
    np.testing.assert_array_equal(predicted, chances > 0.5)
    with pytest.raises(InvalidInput, match=r"labels of 'y' are not 0 or 1"):
        model.evaluate(rows)


def test_nan_scores_predict_nan_and_count_as_wrong_with_every_udf(spark, monkeypatch):
    x = np.array([[np.nan, 0.0, 0.0], [1.0, 2.0, 3.0]])
    rows = frame({"x": x, "a": np.array([1, 0]), "b": np.array([1, 0]), "c": np.array([1, 0])})
    model = untrained()
    scored = model.transform(rows.coalesce(1)).collect()
    with monkeypatch.context() as patch:  # pyspark 4.0 has pandas UDFs only
        patch.delattr(F, "arrow_udf", raising=False)
        assert str(model.transform(rows.coalesce(1)).collect()) == str(scored)
    [first, second] = columns(scored, "prediction")
    assert np.isnan(first).all()
    assert set(second) <= {0.0, 1.0}
    assert model.evaluate(rows).subset_accuracy == (0.0 if second.any() else 0.5)
    with pytest.raises(InvalidInput, match=r"no row has labels in 'a', 'b', 'c'"):
        model.evaluate(rows.withColumn("b", F.lit(None).cast("int")))


ROWS = {"x": np.zeros((8, 3)), "a": np.arange(8) % 2, "b": np.ones(8), "two": np.arange(8) % 3}


@pytest.mark.parametrize("given", [{}, {"strategy": ParallelSGD(shard_batch_size=4, rounds=1)}], ids=["gang", "rounds"])
def test_labels_outside_0_to_1_raise_on_executors(spark, given):
    estimator = TorchClassifier(model=nets.two_scores, numWorkers=1, **MULTI | given)
    rows = frame(ROWS).withColumn("y", F.array("a", "two"))
    with pytest.raises(InvalidInput, match=r"label column 'y' holds 2; expected numbers from 0 to 1"):
        estimator.fit(rows)
    with pytest.raises(InvalidInput, match=r"label column 'low' holds -0.5; expected numbers from 0 to 1"):
        estimator.copy({estimator.labelCol: ["a", "low"]}).fit(rows.withColumn("low", F.col("a") - 0.5))


def test_invalid_settings_raise_before_a_job(spark):
    rows = frame(ROWS).withColumn("y", F.array("a", "b"))
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    for settings, message in (
        ({"classWeights": "balanced"}, r"classWeights is 'balanced'; .*pos_weight"),
        ({"loss": nn.CrossEntropyLoss()}, r"multiLabel is True, and loss is CrossEntropyLoss\(\)"),
        ({"multiLabel": False, "loss": nn.BCEWithLogitsLoss()}, "expected multiLabel=True for independent labels"),
    ):
        with pytest.raises(InvalidInput, match=message):
            TorchClassifier(model=nets.two_scores, **MULTI | settings).fit(rows)
    with pytest.raises(InvalidInput, match="this is a TorchEstimator; expected a TorchClassifier"):
        TorchEstimator(model=nets.two_scores, loss=nn.MSELoss(), **MULTI).fit(rows)
    with pytest.warns(UserWarning, match="numClasses is ignored: with multiLabel"):
        TorchClassifier(model=nets.two_scores, numClasses=2, **MULTI).training()
    with pytest.raises(InvalidInput, match="expected numbers from 0 to 1, one for each label"):
        untrained().setThresholds([0.5, 1.5, 0.5]).transform(rows.select("x"))
    assert set(tracker.getJobIdsForGroup(None)) == before


def test_models_without_one_score_per_label_raise_before_a_step(spark):
    rows = frame(ROWS).withColumn("y", F.array("a", "b"))
    flat = TorchClassifier(model=nets.Line, numWorkers=1, **MULTI)
    with pytest.raises(InvalidInput, match=r"a multi-label classifier's model returns scores \[B, labels\]"):
        flat.fit(rows)


def test_estimators_keep_multilabel_when_saved(spark, tmp_path):
    estimator = TorchClassifier(model=nets.two_scores, **MULTI)
    estimator.save(str(tmp_path / "estimator"))
    loaded = TorchClassifier.load(str(tmp_path / "estimator"))
    assert (loaded.getMultiLabel(), type(loaded.getLoss())) == (True, nn.BCEWithLogitsLoss)
    assert type(loaded.setMultiLabel(False).getLoss()) is nn.CrossEntropyLoss
