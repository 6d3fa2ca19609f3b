"""Training and inference on every kind of column."""

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Bagging, InputColumn, TorchClassifier, TorchEstimator, TorchRegressor
from tests.ml import nets

pytestmark = pytest.mark.slow

ROWS = 40
RANDOM = np.random.default_rng(2)
TOKENS = [RANDOM.integers(0, 20, RANDOM.integers(0, 6)).tolist() for _ in range(ROWS)]
IMAGES = RANDOM.integers(0, 255, (ROWS, 4, 3)).astype(np.uint8)
X = RANDOM.normal(size=(ROWS, 3))
SCHEMA = "row long, tokens array<int>, image binary, x array<double>, y double, z double"

STILL = {"optimizer": partial(torch.optim.SGD, lr=0.0), "numWorkers": 2, "batchSize": 16, "idCol": "row"}
OFFSETS = InputColumn("tokens", "int64", ragged="offsets")
PADDED = InputColumn("tokens", "int64", ragged="padded", padding=19)
BAG = {"model": nets.Bag, "inputCols": ["tokens"], "labelCol": "y", "columnSpecs": [OFFSETS]}
LINE = {"model": nets.Line, "inputCols": ["x"], "labelCol": "y"}


@pytest.fixture(scope="module")
def data(spark):
    rows = [
        (row, TOKENS[row], bytearray(IMAGES[row].tobytes()), X[row].tolist(), float(X[row].sum()), 2.0 * row)
        for row in range(ROWS)
    ]
    return spark.createDataFrame(rows, SCHEMA).withColumn("valid", F.col("row") >= 30).cache()


def predictions(model, data):
    return np.array([row["prediction"] for row in model.transform(data).orderBy("row").select("prediction").collect()])


def check_still(model, data, expected):
    """The first loss and the predictions follow from the first weights."""
    assert model.history[0]["loss"] == pytest.approx(np.square(expected - X.sum(1)).mean(), rel=1e-4)
    np.testing.assert_allclose(predictions(model, data), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("net", "column", "more"),
    [
        (nets.Bag, OFFSETS, {}),
        (nets.Masked, PADDED, {"microBatches": 3}),
        (nets.Masked, OFFSETS, {"microBatches": 3, "collate": nets.pad}),
    ],
    ids=["offsets", "padded", "collate"],
)
def test_arrays_of_several_lengths(data, net, column, more):
    estimator = TorchRegressor(**BAG | {"model": net, "columnSpecs": [column]} | STILL | more)
    check_still(estimator.fit(data), data, np.array([sum(row) / 20 for row in TOKENS]))


def test_all_arrays_but_one_are_empty(data):
    hollow = data.withColumn("tokens", F.expr("if(row = 3, tokens, array())")).withColumn("y", F.lit(0.0))
    fitted = TorchRegressor(**BAG | STILL).fit(hollow)
    expected = [sum(TOKENS[3]) / 20 if row == 3 else 0.0 for row in range(ROWS)]
    assert predictions(fitted, hollow).tolist() == pytest.approx(expected)


def pictures(column):
    return TorchRegressor(model=nets.Picture, inputCols=["image"], labelCol="y", columnSpecs=[column], **STILL)


def test_images_raw_and_decoded(data):
    scale = 0.5

    def closure(image):
        return scale * np.frombuffer(image, np.uint8).reshape(4, 3)

    expected = IMAGES.reshape(ROWS, 12) @ (np.arange(12) / 100)
    raw, decoded = InputColumn("image", "uint8", shape=(4, 3)), InputColumn("image", decode=closure)
    check_still(pictures(raw).fit(data), data, expected)
    check_still(pictures(decoded).fit(data), data, scale * expected)


def test_several_labels_lie_side_by_side(data):
    several = {"model": nets.two_scores, "inputCols": ["x"], "labelCol": ["y", "z"], "loss": nn.MSELoss()}
    model = TorchEstimator(**several | STILL | {"batchSize": ROWS}).fit(data)
    expected = (np.square(X.sum(1)).mean() + np.square(2.0 * np.arange(ROWS)).mean()) / 2
    assert model.history[0]["loss"] == pytest.approx(expected, rel=1e-5)
    assert predictions(model, data).shape == (ROWS, 2)
    soft = data.selectExpr("row", "x", "0.25 as a", "0.75 as b", "0 as c")
    model = TorchClassifier(model=nets.scores, inputCols=["x"], labelCol=["a", "b", "c"], epochs=2).fit(soft)
    assert model.transform(soft).where("prediction is null").count() == 0


def test_collate_applies_to_training_validation_and_inference(data):
    def shift(inputs, target):
        return (inputs[0] + 1,), target

    model = TorchRegressor(validationIndicatorCol="valid", collate=shift, **LINE, **STILL).fit(data)
    with torch.no_grad():
        expected = nets.Line()(torch.from_numpy(X).float() + 1).numpy()
    squares = np.square(expected - X.sum(1))
    assert model.history[0]["loss"] == pytest.approx(squares[:30].mean(), rel=1e-4)
    assert model.history[0]["valid_loss"] == pytest.approx(squares[30:].mean(), rel=1e-4)
    np.testing.assert_allclose(predictions(model, data), expected, rtol=1e-4, atol=1e-5)


def test_augment_applies_to_training_only_and_is_repeatable(data):
    estimator = TorchRegressor(validationIndicatorCol="valid", epochs=2, **LINE, **STILL)
    augments = (None, nets.jitter, nets.jitter)
    plain, one, two = (estimator.setAugment(augment).fit(data) for augment in augments)
    losses = [[row["loss"] for row in model.history] for model in (plain, one, two)]
    assert losses[1] == losses[2] != losses[0]
    assert losses[1][0] != losses[1][1]
    assert plain.history[0]["valid_loss"] == one.history[0]["valid_loss"]
    np.testing.assert_array_equal(predictions(plain, data), predictions(one, data))


def test_assembled_inputs_are_one_array(data):
    """Numbers, arrays and an integer column, as one array of the same numbers."""
    numbers = F.concat(F.array("y"), "x", F.array(F.col("row").cast("double")))
    apart, together = data.withColumn("row_", F.col("row")), data.withColumn("all", numbers)
    settings = STILL | {"model": partial(nn.Linear, 5, 1), "optimizer": "sgd", "learningRate": 1e-4, "labelCol": "z"}
    settings |= {"validationIndicatorCol": "valid", "epochs": 2}
    columns = {"inputCols": ["y", "x", "row_"], "assembleInputs": True}
    one = TorchRegressor(**settings, **columns).fit(apart)
    other = TorchRegressor(**settings, inputCols=["all"]).fit(together)
    assert one.history[-1]["valid_loss"] == other.history[-1]["valid_loss"]
    np.testing.assert_array_equal(predictions(one, apart), predictions(other, together))
    [member] = Bagging(base=TorchRegressor(**settings, **columns), numModels=1, maxFeatures=3).fit(apart).models
    assert int(member.module().state_dict()["seen_0"].sum()) == 3
