"""A class for each token or pixel of a row: vowels among the letters of Shakespeare's plays, and small images."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import InputColumn, InvalidInput, ParallelSGD, TorchClassifier, TorchModel
from sparkdl.io.weights import pack
from tests.ml.labels.test_multilabel import columns
from tests.rounds.data import real
from tests.sessions import frame

LENGTH, IGNORED = 32, -100
WINDOWS = {"inputCols": ["tokens"], "labelCol": "vowels"}


class Letters(nn.Module):
    """Scores ``[B, 2, tokens]`` of each character of a window, from it and its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 8)
        self.layers = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 2, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embedding(tokens).transpose(1, 2))


def windows(first: int, rows: int, length: int = LENGTH):
    """Windows of characters; the label is whether a letter is a vowel, and other characters have none."""
    play = real("tinyshakespeare.txt").read_text(encoding="utf-8")
    tokens = np.frombuffer(play.encode("ascii"), np.uint8)[first : first + rows * length].reshape(rows, length)
    text = np.array(list(play[first : first + rows * length])).reshape(rows, length)
    labels = np.where(np.char.isalpha(text), np.isin(np.char.lower(text), list("aeiou")), IGNORED)
    return {"row": np.arange(rows), "tokens": tokens.astype(np.int64), "vowels": labels.astype(np.int64)}


def scores_of(module, *inputs):
    with torch.inference_mode():
        return module(*(torch.from_numpy(values) for values in inputs))


def test_vowels_among_the_letters_of_shakespeare(spark, tmp_path):
    estimator = TorchClassifier(model=Letters, learningRate=0.01, batchSize=64, epochs=1, numWorkers=2, **WINDOWS)
    fitted = estimator.fit(frame(windows(0, 200)))
    fitted.write().save(str(tmp_path / "model"))
    model, test = TorchModel.load(str(tmp_path / "model")), windows(100_000, 300)
    rows = frame(test).coalesce(1)
    scored = model.transform(rows)
    types = {name: scored.schema[name].dataType.simpleString() for name in scored.columns[-3:]}
    floats = "array<array<float>>"
    assert types == {"rawPrediction": floats, "probability": floats, "prediction": "array<double>"}
    raw, chances, predicted = columns(scored.orderBy("row").collect(), *types)
    scores = scores_of(model.module(), test["tokens"])
    np.testing.assert_allclose(raw, scores.transpose(1, 2), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(chances, scores.softmax(1).transpose(1, 2), atol=1e-6)
    np.testing.assert_array_equal(predicted, chances.argmax(2))
    letters = test["vowels"] != IGNORED
    metrics = model.evaluate(rows)
    assert (metrics.rows, metrics.ignored, model.numClasses) == (letters.sum(), (~letters).sum(), 2)
    assert metrics.accuracy == pytest.approx((predicted == test["vowels"])[letters].mean())

    local = model.predict(test["tokens"])
    np.testing.assert_allclose(np.stack(list(local["probability"])), chances, atol=1e-6)
    np.testing.assert_array_equal(np.stack(list(local["prediction"])), predicted)
    assert [depth for *_, depth in model.predictor().output_types] == [1, 2, 2]

    eager = model.copy({model.thresholds: [1.0, 1e-4]}).transform(rows).orderBy("row").collect()
    np.testing.assert_array_equal(columns(eager, "prediction"), chances[..., 1] / 1e-4 > chances[..., 0])
    assert columns(eager, "prediction").sum() > predicted.sum()

    short = windows(100_000, 8, length=16)  # a convolution takes other lengths
    shorter = columns(model.transform(frame(short)).orderBy("row").collect(), "prediction")
    np.testing.assert_array_equal(shorter, scores_of(model.module(), short["tokens"]).argmax(1))


@pytest.mark.parametrize("shards", [1, 2])
def test_loss_is_the_mean_over_the_tokens_of_all_rows(spark, shards):
    """As of ``nn.CrossEntropyLoss`` on one machine, without the ignored labels, although rows have several letters."""
    data = windows(0, 24)
    module = Letters()
    still = partial(torch.optim.SGD, lr=0.0)
    weights = torch.tensor([1.0, 3.0])
    loss = nn.CrossEntropyLoss(weights)
    settings = {"optimizer": still, "batchSize": 24, "epochs": 1, "numWorkers": shards, "idCol": "row"}
    model = TorchClassifier(model=module, loss=loss, **WINDOWS | settings).fit(frame(data))
    expected = loss(scores_of(module, data["tokens"]), torch.from_numpy(data["vowels"]))
    assert model.history[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


IMAGES = np.random.default_rng(3).random((40, 1, 4, 5))
MASKS = np.digitize(IMAGES[:, 0], [0.3, 0.6])
PIXELS = {"inputCols": ["image"], "labelCol": "mask"}


def pixels():
    return nn.Sequential(nn.Conv2d(1, 16, 1), nn.ReLU(), nn.Conv2d(16, 3, 1))


def test_rounds_train_classes_of_pixels(spark):
    """Masks are flat arrays with a shape of ``columnSpecs`` in training, and nested arrays in the evaluation."""
    rows = frame({"row": np.arange(40), "image": IMAGES, "mask": MASKS})
    strategy = ParallelSGD(shard_batch_size=4, rounds=1)
    settings = {"model": pixels, "strategy": strategy, "learningRate": 0.03, "numWorkers": 2}
    classifier = TorchClassifier(columnSpecs=[InputColumn("mask", shape=(4, 5))], **PIXELS, **settings)
    model = classifier.fit(rows.withColumn("mask", F.flatten("mask")))
    scored = model.transform(rows.coalesce(1))
    assert scored.schema["prediction"].dataType.simpleString() == "array<array<double>>"
    assert scored.schema["probability"].dataType.simpleString() == "array<array<array<float>>>"
    chances, predicted = columns(scored.orderBy("row").collect(), "probability", "prediction")
    scores = scores_of(model.module(), IMAGES.astype(np.float32))
    np.testing.assert_allclose(chances, scores.softmax(1).movedim(1, -1), atol=1e-6)
    np.testing.assert_array_equal(predicted, scores.argmax(1))
    assert model.evaluate(rows).accuracy == pytest.approx((predicted == MASKS).mean())


def untrained(factory=pixels, output=(3, 4, 5)):
    model = TorchModel(factory=factory, weights=pack(factory()), kind="classifier", output=[*output])
    return model._set(**PIXELS)


def test_nan_scores_predict_nan_for_their_pixels_alone_with_every_udf(spark, monkeypatch):
    images = IMAGES[:2].copy()
    images[0, 0, 0, 0] = np.nan
    model, rows = untrained(), frame({"image": images, "mask": MASKS[:2]}).coalesce(1)
    scored = model.transform(rows).collect()
    assert np.argwhere(np.isnan(columns(scored, "prediction"))).tolist() == [[0, 0, 0]]
    with monkeypatch.context() as patch:  # pyspark 4.0 has pandas UDFs only
        patch.delattr(F, "arrow_udf", raising=False)
        assert str(model.transform(rows).collect()) == str(scored)
    with pytest.raises(InvalidInput, match="predictions that are NaN"):
        model.evaluate(rows)


def test_labels_of_another_shape_have_no_metrics(spark):
    rows = frame({"image": IMAGES, "mask": MASKS})
    with pytest.raises(InvalidInput, match="another number of labels than of predictions"):
        untrained().evaluate(rows.withColumn("mask", F.slice("mask", 1, 3)))
    with pytest.raises(InvalidInput, match="no row has a label from 0 to 2 in the column mask"):
        untrained().evaluate(rows.withColumn("mask", F.expr("transform(mask, line -> transform(line, m -> -1))")))
    with pytest.raises(InvalidInput, match="values of type string; expected numbers"):
        untrained().evaluate(rows.withColumn("mask", F.array(F.lit("a"))))


@pytest.mark.parametrize("given", [{}, {"strategy": ParallelSGD(shard_batch_size=4, rounds=1)}], ids=["gang", "rounds"])
def test_invalid_labels_and_outputs_raise_before_a_step(spark, given):
    rows = frame({"image": IMAGES, "mask": MASKS})
    with pytest.raises(InvalidInput, match=r"'mask' holds 2; expected class indices from 0 to 1, for the model's 2"):
        TorchClassifier(model=partial(nn.Conv2d, 1, 2, 1), numWorkers=1, **PIXELS, **given).fit(rows)

    def last():
        return nn.Sequential(pixels(), nn.Flatten(2), nn.Unflatten(2, (2, 2, 5)))

    with pytest.raises(InvalidInput, match=r"returned \[32, 3, 2, 2, 5\] .* labels \[32, 4, 5\] .* d1, \.\.\.\]"):
        TorchClassifier(model=last, numWorkers=1, **PIXELS, **given).fit(rows)


def test_rows_of_several_lengths_raise_before_a_job(spark):
    padded = InputColumn("tokens", "int64", ragged="padded")
    rows, tracker = frame(windows(0, 4)), spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    with pytest.raises(InvalidInput, match="column 'tokens' is ragged, and the model predicts a class for each token"):
        TorchClassifier(model=Letters, columnSpecs=[padded], **WINDOWS).fit(rows)
    model = TorchModel(factory=Letters, weights=pack(Letters()), kind="classifier", output=[2, 32])
    with pytest.raises(InvalidInput, match="column 'tokens' is ragged"):
        model._set(inputCols=["tokens"], columnSpecs=[padded]).transform(rows)
    with pytest.raises(InvalidInput, match=r"label column 'vowels' with dtype='uint8'; expected none, or 'int64'"):
        TorchClassifier(model=Letters, columnSpecs=[InputColumn("vowels", "uint8")], **WINDOWS).fit(rows)
    with pytest.raises(InvalidInput, match="label column 'vowels' is ragged"):
        TorchClassifier(model=Letters, columnSpecs=[InputColumn("vowels", ragged="padded")], **WINDOWS).fit(rows)
    assert set(tracker.getJobIdsForGroup(None)) == before


def test_models_of_unknown_output_score_one_class_per_row(spark):
    model = TorchModel(factory=pixels, weights=pack(pixels()), kind="classifier")._set(**PIXELS)
    with pytest.raises(Exception, match=r"the model returned \[40, 3, 4, 5\]; expected \[B, classes\] of 2 dimensions"):
        model.transform(frame({"image": IMAGES}).coalesce(1)).collect()
