"""Estimators train what they say: where it can be, a fit is compared with torch alone in one process."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from sparkdl import TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.io.weights import pack
from tests.ml import nets
from tests.sessions import frame

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ROWS = 60
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(ROWS, 3))
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "y": X @ [1.0, -2.0, 0.5] + 0.25,
    "label": (X @ [1.0, 1.0, -1.0] > 0).astype(np.float64),
    "weight": RANDOM.integers(0, 4, ROWS) / 2,
}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).cache()


def regressor(**given):
    """Full batches in double precision, so that it can be compared with one process."""
    defaults = {
        "model": nets.column,
        "optimizer": SGD,
        "inputCols": ["x"],
        "labelCol": "y",
        "numWorkers": 2,
        "batchSize": ROWS,
        "epochs": 4,
        "precision": "fp64",
        "idCol": "row",
    }
    return TorchRegressor(**defaults | given)


def alone(rows=slice(None), *, epochs=4, weights=None, dtype=torch.float64):
    """The weights that torch alone ends with, on full batches."""
    module = nets.column().to(dtype)
    optimizer = SGD(module.parameters())
    x, y = torch.from_numpy(X[rows]).to(dtype), torch.from_numpy(ARRAYS["y"][rows]).to(dtype)
    weights = torch.ones_like(y) if weights is None else torch.from_numpy(weights[rows])
    for _ in range(epochs):
        optimizer.zero_grad()
        ((module(x).squeeze(-1) - y).square() * weights).sum().div(weights.sum()).backward()
        optimizer.step()
    return module.state_dict()


def same(model, expected, tolerance=1e-12):
    torch.testing.assert_close(model.module().state_dict(), expected, rtol=0, atol=tolerance)


# ---- the same as torch alone -----------------------------------------------------------------------------------------


def test_a_fit_is_torch_alone(data):
    model = regressor().fit(data)
    same(model, alone())
    assert model.getInputCols() == ["x"]
    evaluator = RegressionEvaluator(labelCol="y", metricName="mse")
    with torch.no_grad():
        output = model.module()(torch.from_numpy(X)).squeeze(-1).numpy()
    assert evaluator.evaluate(model.transform(data)) == pytest.approx(np.square(output - ARRAYS["y"]).mean())


def test_rows_count_by_their_weights(data):
    same(regressor(weightCol="weight").fit(data), alone(weights=ARRAYS["weight"]))


@pytest.mark.parametrize("rows", [3, 1])
def test_fewer_rows_than_members_need(data, rows):
    same(regressor().fit(data.where(f"row < {rows}")), alone(slice(rows)))


def test_outputs_of_one_number_may_have_two_shapes(data):
    found = regressor(model=nets.Line).fit(data).module().inner.state_dict()
    torch.testing.assert_close(found, alone(), rtol=0, atol=1e-12)


def test_half_precision_keeps_its_weights_in_single(data):
    model = regressor(precision="bf16", epochs=20).fit(data)
    state = model.module().state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    torch.testing.assert_close(state, alone(epochs=20, dtype=torch.float32), rtol=0, atol=0.02)
    assert model.history[-1]["loss"] < model.history[0]["loss"] / 10


def test_a_module_is_the_start(data):
    start = nets.column()
    before = {name: tensor.clone() for name, tensor in start.state_dict().items()}
    same(regressor(model=start).fit(data), alone())
    torch.testing.assert_close(start.state_dict(), before, rtol=0, atol=0)


def test_the_report_names_the_best_epoch(data):
    marked = data.withColumn("held out", F.col("row") % 4 == 0)
    model = regressor(validationIndicatorCol="held out", patience=1, epochs=2).fit(marked)
    losses = [row["valid_loss"] for row in model.history]
    assert model.report["best_epoch"] == 1 + losses.index(min(losses))
    assert regressor(epochs=1).fit(data).report["best_epoch"] is None


def test_the_weights_of_the_best_epoch_are_the_models(data):
    held_out = data.where("row % 4 = 0").select("row", "x", (-F.col("y")).alias("y"), F.lit(True).alias("held out"))
    rest = data.where("row % 4 != 0").select("row", "x", "y", F.lit(False).alias("held out"))
    marked = held_out.union(rest)  # what is learned makes the rows held out worse and worse
    model = regressor(validationIndicatorCol="held out", patience=1, epochs=9).fit(marked)
    assert (model.report["best_epoch"], len(model.history)) == (1, 2)
    first = regressor(validationIndicatorCol="held out", epochs=1).fit(marked)
    assert pack(model.module()) == pack(first.module())


def test_validation_rows_are_kept_out(data):
    marked = data.withColumn("held out", F.col("row") >= 40)
    model = regressor(validationIndicatorCol="held out", epochs=1).fit(marked)
    same(model, alone(slice(40), epochs=1))
    with torch.no_grad():
        output = model.module()(torch.from_numpy(X[40:])).squeeze(-1).numpy()
    assert model.history[0]["valid_loss"] == pytest.approx(np.square(output - ARRAYS["y"][40:]).mean())


# ---- Params and pipelines --------------------------------------------------------------------------------------------


def test_a_param_map_is_for_one_fit(data):
    estimator = regressor()
    same(estimator.fit(data, {estimator.epochs: 1}), alone(epochs=1))
    assert estimator.getEpochs() == 4


def test_a_list_of_param_maps_gives_a_list_of_models(data):
    estimator = regressor()
    maps = [{estimator.epochs: 1}, {estimator.epochs: 2, estimator.predictionCol: "p"}]
    one, two = estimator.fit(data, maps)
    same(one, alone(epochs=1))
    same(two, alone(epochs=2))
    assert (one.getPredictionCol(), two.getPredictionCol()) == ("prediction", "p")


def test_a_pipeline(data):
    columns = data.select("row", "y", *(F.col("x")[index].alias(f"x.{index}") for index in range(3)))
    renamed = columns.toDF("row", "y", "a", "b", "c")
    assembler = VectorAssembler(inputCols=["a", "b", "c"], outputCol="all.features")
    fitted = Pipeline(stages=[assembler, regressor(inputCols=["all.features"])]).fit(renamed)
    same(fitted.stages[1], alone())
    assert fitted.transform(renamed).columns[-1] == "prediction"


# ---- what a label and an output mean ---------------------------------------------------------------------------------


def test_two_classes_with_one_score(data):
    model = TorchClassifier(
        model=nets.column,
        loss=nn.BCEWithLogitsLoss(),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        inputCols=["x"],
        numWorkers=2,
        batchSize=ROWS,
        epochs=40,
    ).fit(data)
    scored = model.transform(data)
    assert BinaryClassificationEvaluator().evaluate(scored) > 0.95
    assert scored.where("prediction = label").count() > 0.9 * ROWS


def test_classes_from_vectors_booleans_and_classes_with_weights(data):
    vectors = data.select(array_to_vector("x").alias("features"), (F.col("label") > 0).alias("label"))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0]))
    model = TorchClassifier(model=nets.scores, loss=loss, numWorkers=2, batchSize=16, epochs=2).fit(vectors)
    scored = model.transform(vectors)
    assert scored.columns == ["features", "label", "rawPrediction", "probability", "prediction"]
    assert {len(row["probability"]) for row in scored.collect()} == {3}


def test_what_a_fit_makes_no_use_of_is_ignored_with_a_warning(data):
    with pytest.warns(UserWarning, match=r"maxRounds=3 is ignored: AllReduce\(.*\) does not use it"):
        same(regressor(maxRounds=3, epochs=1).fit(data), alone(epochs=1))


def test_a_number_of_classes_is_for_one_label_of_classes(data):
    with pytest.warns(UserWarning, match="numClasses is for a classifier with one label column; this TorchRegressor"):
        regressor(numClasses=3, epochs=1).fit(data)
    two = TorchClassifier(model=nets.column, loss=nn.BCEWithLogitsLoss(), inputCols=["x"], numClasses=3)
    with pytest.raises(InvalidInput, match=r"numClasses is 3; expected 2: BCEWithLogitsLoss\(\) tells two classes"):
        two.fit(data)


def test_a_raw_output_of_one_number(data):
    estimator = TorchEstimator(model=nets.column, loss=nn.L1Loss(), inputCols=["x"], labelCol="y", numWorkers=2)
    scored = estimator.fit(data).transform(data)
    assert scored.schema["prediction"].dataType == T.FloatType()
    assert scored.where("prediction is null").count() == 0


def test_without_a_label_the_inputs_are_the_target(data):
    estimator = TorchEstimator(
        model=nets.Autoencoder, loss=nn.MSELoss(), inputCols=["x"], labelCol=None, numWorkers=2, batchSize=20, epochs=30
    )
    model = estimator.fit(data)
    assert model.history[-1]["loss"] < model.history[0]["loss"]
    first = model.transform(data).first()["prediction"]
    assert len(first) == 3


@pytest.mark.slow
def test_several_inputs_of_several_kinds(data):
    given = data.selectExpr(
        "array(array(x[0], x[1]), array(x[2], 1.0)) as image", "cast(row % 4 as smallint) as kind", "x[1] as price", "y"
    )
    estimator = TorchRegressor(
        model=partial(nets.Scaled, scale=0.01),
        inputCols=["image", "kind", "price"],
        labelCol="y",
        numWorkers=2,
        optimizer=partial(torch.optim.SGD, lr=0.0),
    )
    model = estimator.fit(given)
    rows = given.collect()
    wanted = [0.01 * (np.sum(row["image"]) + 100 * row["kind"] - 1000 * row["price"]) for row in rows]
    found = [row["prediction"] for row in model.transform(given).collect()]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    expected = np.square(np.array(wanted) - [row["y"] for row in rows]).mean()
    assert model.history[0]["loss"] == pytest.approx(expected, rel=1e-4)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_columns_are_checked_before_anything_runs(data):
    before = set(data.sparkSession.sparkContext.statusTracker().getJobIdsForGroup(None))
    with pytest.raises(InvalidInput, match="there is no column 'nothing'"):
        regressor(inputCols=["nothing"]).fit(data)
    with pytest.raises(InvalidInput, match="there is no column 'w'"):
        regressor(weightCol="w").fit(data)
    with pytest.raises(InvalidInput, match=r"column 'y' has type string; .*StringIndexer"):
        regressor().fit(data.withColumn("y", F.lit("a")))
    assert set(data.sparkSession.sparkContext.statusTracker().getJobIdsForGroup(None)) == before


def test_a_label_that_is_no_class_is_named(data):
    message = r"part .: column 'y' has \d+ values that are not whole numbers within int64's range in \d+ rows"
    with pytest.raises(InvalidInput, match=message) as caught:
        TorchClassifier(model=nets.scores, inputCols=["x"], labelCol="y").fit(data)
    assert caught.value.stage == "feed"


def test_only_validation_rows_are_no_rows_to_train_on(data):
    with pytest.raises(InvalidInput, match="every row is a validation row"):
        regressor(validationIndicatorCol="held out").fit(data.withColumn("held out", F.lit(True)))
    with pytest.raises(InvalidInput, match="the data has no rows"):
        regressor().fit(data.where("row < 0"))


def test_an_error_of_the_model_comes_back_with_its_own_traceback(data):
    with pytest.raises(WorkerFailed, match="RuntimeError: mat1 and mat2 shapes cannot be multiplied") as caught:
        regressor(model=nets.digits).fit(data)
    assert caught.value.stage == "work"
    assert "forward" in caught.value.trace
    assert "py4j" not in str(caught.value)
