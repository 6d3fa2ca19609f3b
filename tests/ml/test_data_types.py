"""Every kind of column on Spark: what a model is trained on, and the same in what it scores."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparkdl import TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from tests.ml import nets, typed_nets
from tests.sessions import frame

pytestmark = pytest.mark.slow  # all of them together, each being a fit

ROWS = 40
RANDOM = np.random.default_rng(2)
TOKENS = [RANDOM.integers(0, 20, RANDOM.integers(0, 6)).tolist() for _ in range(ROWS)]
IMAGES = RANDOM.integers(0, 255, (ROWS, 4, 3)).astype(np.uint8)
X = RANDOM.normal(size=(ROWS, 3))
SCHEMA = "row long, tokens array<int>, image binary, x array<double>, y double, z double"

STILL = {"optimizer": partial(torch.optim.SGD, lr=0.0), "numWorkers": 2, "batchSize": 16, "idCol": "row"}
OFFSETS = InputColumn("tokens", "int64", ragged="offsets")
PADDED = InputColumn("tokens", "int64", ragged="padded", padding=19)


@pytest.fixture(scope="module")
def data(spark):
    rows = [
        (row, TOKENS[row], bytearray(IMAGES[row].tobytes()), X[row].tolist(), float(X[row].sum()), 2.0 * row)
        for row in range(ROWS)
    ]
    return spark.createDataFrame(rows, SCHEMA).cache()


def predictions(model, data):
    return np.array([row["prediction"] for row in model.transform(data).orderBy("row").select("prediction").collect()])


def check_still(model, data, expected):
    """The loss of the first epoch and the predictions are those of the model's first weights."""
    labels = X.sum(1)
    assert model.history[0]["loss"] == pytest.approx(np.square(expected - labels).mean(), rel=1e-4)
    np.testing.assert_allclose(predictions(model, data), expected, rtol=1e-5, atol=1e-6)


# ---- arrays of several lengths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "column", "collate"),
    [
        (typed_nets.Bag, OFFSETS, None),
        (typed_nets.Masked, PADDED, None),
        (typed_nets.Masked, OFFSETS, typed_nets.pad),
    ],
    ids=["offsets", "padded", "collate"],
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_tokens(data, net, column, collate, accumulate):
    estimator = TorchRegressor(
        model=net,
        inputCols=["tokens"],
        labelCol="y",
        columnSpecs=[column],
        microBatches=accumulate,
        collate=collate,
        **STILL,
    )
    check_still(estimator.fit(data), data, np.array([sum(row) / 20 for row in TOKENS]))


def test_an_embedding_bag_learns(data):
    labelled = data.withColumn("y", F.expr("aggregate(tokens, 0, (s, t) -> s + t) / 10d"))
    model = TorchRegressor(
        model=typed_nets.Bag,
        inputCols=["tokens"],
        labelCol="y",
        columnSpecs=[OFFSETS],
        numWorkers=2,
        batchSize=8,
        epochs=30,
        optimizer=partial(torch.optim.Adam, lr=0.05),
    ).fit(labelled)
    assert model.history[-1]["loss"] < model.history[0]["loss"] / 2
    state = model.module().state_dict()["bag.weight"]
    expected = [sum(float(state[token]) for token in row) for row in TOKENS]
    np.testing.assert_allclose(predictions(model, labelled), expected, rtol=1e-4, atol=1e-5)


def test_a_part_and_a_model_without_tokens(data):
    hollow = data.withColumn("tokens", F.expr("if(row = 3, tokens, array())")).withColumn("y", F.lit(0.0))
    model = TorchRegressor(model=typed_nets.Bag, inputCols=["tokens"], labelCol="y", columnSpecs=[OFFSETS], **STILL)
    fitted = model.fit(hollow)
    assert predictions(fitted, hollow).tolist() == pytest.approx(
        [sum(TOKENS[3]) / 20 if row == 3 else 0.0 for row in range(ROWS)]
    )


def test_tokens_that_are_not_described_are_refused_with_advice(data):
    with pytest.raises(
        InvalidInput, match=r"shard \d: column 'tokens' has arrays of several lengths.*ragged=\"offsets\""
    ):
        TorchRegressor(model=typed_nets.Bag, inputCols=["tokens"], labelCol="y", **STILL).fit(data)


# ---- binary columns --------------------------------------------------------------------------------------------------


def expected_of_images(scale=1):
    return scale * (IMAGES.reshape(ROWS, 12) @ (np.arange(12) / 100))


def pictures(column, **others):
    return TorchRegressor(
        model=typed_nets.Picture, inputCols=["image"], labelCol="y", columnSpecs=[column], **STILL | others
    )


@pytest.mark.parametrize(
    "column",
    [InputColumn("image", "uint8", shape=(4, 3)), InputColumn("image", decode=typed_nets.read)],
    ids=["raw", "decode"],
)
def test_images(data, column):
    check_still(pictures(column).fit(data), data, expected_of_images())


def test_a_closure_decodes(data):
    scale = 0.5

    def read(image):
        return scale * typed_nets.read(image)

    check_still(pictures(InputColumn("image", decode=read)).fit(data), data, expected_of_images(scale))


def test_bytes_of_another_length(data):
    with pytest.raises(
        InvalidInput, match=r"shard \d: column 'image' has .* values of a wrong length, such as 12 bytes; expected 48"
    ):
        pictures(InputColumn("image", "float32", shape=(4, 3))).fit(data)


def test_a_decode_that_fails_says_where(data):
    def fail(image):
        raise KeyError("no such codec")

    with pytest.raises(
        InvalidInput, match=r"shard \d: decode of column 'image' raised KeyError: 'no such codec'"
    ) as caught:
        pictures(InputColumn("image", decode=fail)).fit(data)
    assert caught.value.stage == "feed"
    model = pictures(InputColumn("image", decode=typed_nets.read)).fit(data)
    with pytest.raises(PythonException, match="decode of column 'image' raised KeyError: 'no such codec'"):
        model.setColumnSpecs([InputColumn("image", decode=fail)]).transform(data).collect()


# ---- vectors ---------------------------------------------------------------------------------------------------------


def test_sparse_and_dense_vectors_are_the_same(spark):
    dense = [(row, Vectors.dense([row, 0.0, 1.0]), float(row)) for row in range(12)]
    mixed = [(row, Vectors.sparse(3, {0: float(row), 2: 1.0}) if row % 2 else vector, y) for row, vector, y in dense]
    estimator = TorchRegressor(model=nets.column, inputCols=["x"], labelCol="y", epochs=3, batchSize=4, idCol="row")
    states = [
        estimator.fit(spark.createDataFrame(rows, ["row", "x", "y"])).module().state_dict() for rows in (dense, mixed)
    ]
    torch.testing.assert_close(*states, rtol=0, atol=0)


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_several_labels_lie_side_by_side(data):
    estimator = TorchEstimator(
        model=typed_nets.Two, loss=nn.MSELoss(), inputCols=["x"], labelCol=["y", "z"], numWorkers=2, batchSize=10
    )
    model = estimator.setOptimizer(partial(torch.optim.SGD, lr=0.0)).fit(data)
    expected = (np.square(X.sum(1)).mean() + np.square(2.0 * np.arange(ROWS)).mean()) / 2
    assert model.history[0]["loss"] == pytest.approx(expected, rel=1e-5)
    assert predictions(model, data).shape == (ROWS, 2)


def test_several_labels_are_probabilities_of_classes(data):
    soft = data.selectExpr("row", "x", "0.25 as a", "0.75 as b", "0 as c")
    model = TorchClassifier(model=nets.scores, inputCols=["x"], labelCol=["a", "b", "c"], epochs=2).fit(soft)
    assert model.transform(soft).where("prediction is null").count() == 0


def test_without_a_label_the_first_input_is_the_target(data):
    estimator = TorchEstimator(
        model=nets.Autoencoder, loss=nn.MSELoss(), inputCols=["x"], labelCol=None, numWorkers=2, batchSize=20, epochs=30
    )
    model = estimator.fit(data)
    assert model.history[-1]["loss"] < model.history[0]["loss"]


# ---- collate and augment ---------------------------------------------------------------------------------------------


def test_collate_is_for_training_validation_and_inference(data):
    def shift(inputs, target):
        return (inputs[0] + 1,), target

    estimator = TorchRegressor(
        model=nets.Line, inputCols=["x"], labelCol="y", validationIndicatorCol="held out", collate=shift, **STILL
    )
    marked = data.withColumn("held out", F.col("row") >= 30)
    model = estimator.fit(marked)
    with torch.no_grad():
        expected = nets.Line()(torch.from_numpy(X).float() + 1).numpy()
    squares = np.square(expected - X.sum(1))
    assert model.history[0]["loss"] == pytest.approx(squares[:30].mean(), rel=1e-4)
    assert model.history[0]["valid_loss"] == pytest.approx(squares[30:].mean(), rel=1e-4)
    np.testing.assert_allclose(predictions(model, marked), expected, rtol=1e-4, atol=1e-5)


def test_augment_is_for_training_alone_and_repeatable(data):
    marked = data.withColumn("held out", F.col("row") >= 30)
    estimator = TorchRegressor(
        model=nets.Line, inputCols=["x"], labelCol="y", validationIndicatorCol="held out", epochs=2, **STILL
    )
    plain, one, two = (
        estimator.setAugment(augment).fit(marked) for augment in (None, typed_nets.jitter, typed_nets.jitter)
    )
    losses = [[row["loss"] for row in model.history] for model in (plain, one, two)]
    assert losses[1] == losses[2] != losses[0]
    assert losses[1][0] != losses[1][1]
    assert plain.history[0]["valid_loss"] == one.history[0]["valid_loss"]
    np.testing.assert_array_equal(predictions(plain, data), predictions(one, data))


def test_rows_may_not_be_left_out(data):
    def halve(inputs, target):
        return (inputs[0][::2],), target[::2]

    estimator = TorchRegressor(model=nets.Line, inputCols=["x"], labelCol="y", collate=halve, **STILL)
    with pytest.raises(InvalidInput, match=r"collate returned \d rows in input 0 for a batch of \d+ rows") as caught:
        estimator.fit(data.where("row < 16").repartition(1))
    assert caught.value.stage == "work"
    assert caught.value.rank is not None


# ---- bad values ------------------------------------------------------------------------------------------------------


def test_bad_values_are_counted_over_the_whole_part(data):
    holed = data.withColumn(
        "y", F.expr("case when row % 4 = 0 then null when row % 4 = 1 then double('nan') else y end")
    )
    with pytest.raises(InvalidInput, match="shard 0: column 'y' has 10 nulls and 10 NaN in 40 rows; expected none"):
        TorchRegressor(model=nets.Line, inputCols=["x"], labelCol="y").fit(holed)


def test_dates_are_refused_before_anything_runs(data):
    dated = data.withColumn("x", F.current_timestamp())
    with pytest.raises(InvalidInput, match=r"column 'x' has type timestamp; .*F\.unix_timestamp"):
        TorchRegressor(model=nets.Line, inputCols=["x"], labelCol="y").fit(dated)
    interval = data.withColumn("x", F.expr("interval '3' day"))
    with pytest.raises(InvalidInput, match=r"column 'x' has type interval day; .*F\.extract"):
        TorchRegressor(model=nets.Line, inputCols=["x"], labelCol="y").fit(interval)


def test_numbers_of_every_type(spark):
    rows = frame({"row": np.arange(8), "x": np.arange(24.0).reshape(8, 3)}).selectExpr(
        "row", "x", "cast(row as decimal(9, 2)) as y", "row % 2 = 0 as flag"
    )
    assert rows.schema["y"].dataType == T.DecimalType(9, 2)
    for label in ("y", "flag"):
        model = TorchRegressor(model=nets.Line, inputCols=["x"], labelCol=label, **STILL).fit(rows)
        with torch.no_grad():
            output = nets.Line()(torch.arange(24.0).view(8, 3)).numpy()
        labels = np.arange(8) if label == "y" else np.arange(8) % 2 == 0
        assert model.history[0]["loss"] == pytest.approx(np.square(output - labels).mean(), rel=1e-4)
