"""Fits of estimators equal those of torch alone in one process."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from torch import nn

from sparkdl import TorchClassifier, TorchRegressor
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.param_values import same
from tests.ml import nets, rows
from tests.ml.rows import ARRAYS, ROWS, X
from tests.ml.test_params import state

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
FULL_BATCHES = {"optimizer": SGD, "batchSize": ROWS, "epochs": 4, "precision": "fp64"}
VALID = ARRAYS["valid"]
regressor = partial(rows.regressor, **FULL_BATCHES)


def mean_squares(output, target, weights):
    return ((output - target).square() * weights).sum() / weights.sum()


def alone(
    used=slice(None), *, epochs=4, weights=None, dtype=torch.float64, factory=nets.column, loss=mean_squares, label="y"
):
    """The weights of torch alone, on full batches."""
    module = factory().to(dtype)
    optimizer = SGD(module.parameters())
    x, y = torch.from_numpy(X[used]).to(dtype), torch.from_numpy(ARRAYS[label][used])
    weights = np.ones(ROWS) if weights is None else weights
    arguments = (torch.from_numpy(weights[used]),) if loss is mean_squares else ()
    for _ in range(epochs):
        optimizer.zero_grad()
        loss(module(x).squeeze(-1), y, *arguments).backward()
        optimizer.step()
    return module.state_dict()


def check_weights(model, expected, tolerance=1e-12):
    torch.testing.assert_close(model.module().state_dict(), expected, rtol=0, atol=tolerance)


def test_pipeline_and_its_saved_model(data, tmp_path):
    renamed = data.select("row", "y", *(F.col("x")[index].alias("abc"[index]) for index in range(3)))
    assembler = VectorAssembler(inputCols=["a", "b", "c"], outputCol="all.features")
    estimator = regressor(inputCols=["all.features"], predictionCol="p")
    fitted = Pipeline(stages=[assembler, estimator]).fit(renamed)
    model = fitted.stages[1]
    check_weights(model, alone())
    assert (model.uid, model.isSet("predictionCol"), model.isSet("thresholds")) == (estimator.uid, True, False)
    assert model.getInputCols() == ["all.features"]
    with torch.no_grad():
        output = model.module()(torch.from_numpy(X)).squeeze(-1).numpy()
    evaluator = RegressionEvaluator(labelCol="y", predictionCol="p", metricName="mse")
    assert evaluator.evaluate(fitted.transform(renamed)) == pytest.approx(np.square(output - ARRAYS["y"]).mean())
    assert fitted.transform(renamed, {estimator.predictionCol: "q"}).columns[-1] == "q"
    assert fitted.transform(renamed, {model.predictionCol: "q"}).columns[-1] == "q"
    assert model.getPredictionCol() == "p"
    fitted.save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline")).stages[1]
    assert loaded.uid == model.uid
    assert same(state(loaded), state(model))


def test_rows_count_by_their_weights(data):
    check_weights(regressor(weightCol="weight").fit(data), alone(weights=ARRAYS["weight"]))


@pytest.mark.parametrize("count", [3, 1])
def test_fewer_rows_than_workers(data, count):
    check_weights(regressor().fit(data.where(f"row < {count}")), alone(slice(count)))


def test_half_precision_keeps_its_weights_in_single(data):
    model = regressor(precision="bf16", epochs=20).fit(data)
    state = model.module().state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    torch.testing.assert_close(state, alone(epochs=20, dtype=torch.float32), rtol=0, atol=0.02)
    assert model.history[-1]["loss"] < model.history[0]["loss"] / 10


def test_training_starts_from_a_module_and_leaves_it_unchanged(data):
    start = nets.column()
    before = copy.deepcopy(start.state_dict())
    check_weights(regressor(model=start).fit(data), alone())
    torch.testing.assert_close(start.state_dict(), before, rtol=0, atol=0)


# Torch's own mean divides by the sum of the rows' class weights for cross-entropy, and by the rows for pos_weight.
@pytest.mark.parametrize(
    ("factory", "loss", "label"),
    [
        (nets.scores, nn.CrossEntropyLoss(weight=torch.tensor([0.25, 3.0, 1.5])), "several"),
        (nets.column, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0)), "label"),
    ],
)
def test_class_weights(data, factory, loss, label):
    expected = alone(factory=factory, loss=copy.deepcopy(loss).double(), label=label)
    check_weights(rows.classifier(model=factory, loss=loss, labelCol=label, **FULL_BATCHES).fit(data), expected, 1e-10)


def test_validation_rows_are_not_trained_on(data):
    model = regressor(validationIndicatorCol="valid", epochs=1).fit(data)
    check_weights(model, alone(~VALID, epochs=1))
    with torch.no_grad():
        output = model.module()(torch.from_numpy(X[VALID])).squeeze(-1).numpy()
    assert model.history[0]["valid_loss"] == pytest.approx(np.square(output - ARRAYS["y"][VALID]).mean())
    assert model.report["best_epoch"] is None


def test_patience_returns_the_weights_of_the_best_epoch(data):
    contrary = data.withColumn("y", F.expr("if(valid, -y, y)"))  # training makes validation rows worse and worse
    model = regressor(validationIndicatorCol="valid", patience=1, epochs=9).fit(contrary)
    assert (model.report["best_epoch"], len(model.history)) == (1, 2)
    first = regressor(validationIndicatorCol="valid", epochs=1).fit(contrary)
    assert pack(model.module()) == pack(first.module())


def test_classes_from_vectors_and_booleans(data):
    vectors = data.select(array_to_vector("x").alias("features"), (F.col("label") > 0).alias("label"))
    scored = TorchClassifier(model=nets.scores, numWorkers=2, batchSize=16).fit(vectors).transform(vectors)
    assert scored.columns == ["features", "label", "rawPrediction", "probability", "prediction"]
    assert {len(row["probability"]) for row in scored.collect()} == {3}


def test_ignored_params_are_warned_of(data):
    with (
        pytest.warns(UserWarning, match=r"maxRounds=3 is ignored: AllReduce\(.*\) does not use it"),
        pytest.warns(UserWarning, match="numClasses .*TorchRegressor"),
    ):
        check_weights(regressor(maxRounds=3, numClasses=3, epochs=1).fit(data), alone(epochs=1))


def test_several_inputs_of_several_kinds(data):
    mixed = data.selectExpr(
        "array(array(x[0], x[1]), array(x[2], 1.0)) as image", "cast(row % 4 as smallint) as kind", "x[1] as price", "y"
    )
    model = TorchRegressor(
        model=partial(nets.Scaled, scale=0.01),
        inputCols=["image", "kind", "price"],
        labelCol="y",
        numWorkers=2,
        optimizer=partial(torch.optim.SGD, lr=0.0),
    ).fit(mixed)
    scored = model.transform(mixed).collect()
    expected = [0.01 * (np.sum(row["image"]) + 100 * row["kind"] - 1000 * row["price"]) for row in scored]
    np.testing.assert_allclose([row["prediction"] for row in scored], expected, rtol=1e-4)
    loss = np.square(np.array(expected) - [row["y"] for row in scored]).mean()
    assert model.history[0]["loss"] == pytest.approx(loss, rel=1e-4)


def test_columns_are_checked_before_any_job(data):
    tracker = data.sparkSession.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    with pytest.raises(InvalidInput, match="no column 'w'"):
        regressor(weightCol="w").fit(data)
    with pytest.raises(InvalidInput, match=r"column 'y' has type string; .*StringIndexer"):
        regressor().fit(data.withColumn("y", F.lit("a")))
    assert set(tracker.getJobIdsForGroup(None)) == before
