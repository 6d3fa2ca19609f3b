"""Fits of estimators equal those of torch alone in one process."""

import json
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

from sparkdl import InvalidInput, ParallelSGD, TorchClassifier
from sparkdl.serving.format.param_values import same
from tests.ml import nets, rows
from tests.ml.rows import ARRAYS, ROWS, X
from tests.ml.test_params import state

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
FULL_BATCHES = {"optimizer": SGD, "batchSize": ROWS, "epochs": 4, "precision": "fp64"}
regressor = partial(rows.regressor, **FULL_BATCHES)


def alone(weights=None):
    """The weights of torch alone, on full batches."""
    module = nets.column().double()
    optimizer = SGD(module.parameters())
    x, y = torch.from_numpy(X), torch.from_numpy(ARRAYS["y"])
    weights = torch.from_numpy(np.ones(ROWS) if weights is None else weights)
    for _ in range(4):
        optimizer.zero_grad()
        losses = (module(x).squeeze(-1) - y) ** 2
        ((losses * weights).sum() / weights.sum()).backward()
        optimizer.step()
    return module.state_dict()


def check_weights(model, expected):
    torch.testing.assert_close(model.module().state_dict(), expected, rtol=0, atol=1e-12)


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
    assert loaded.columnTypes == dict(renamed.dtypes) | {"all.features": "vector"}
    assert same(state(loaded), state(model))


def test_rows_count_by_their_weights_and_ignored_params_are_warned_of(data):
    with (
        pytest.warns(UserWarning, match=r"maxRounds=3 is ignored: AllReduce\(.*\) does not use it"),
        pytest.warns(UserWarning, match="numClasses=3 is ignored without a TorchClassifier"),
    ):
        model = regressor(weightCol="weight", maxRounds=3, numClasses=3).fit(data)
    check_weights(model, alone(ARRAYS["weight"]))


def test_defaults_are_ten_epochs_on_all_slots_which_the_run_keeps(data, tmp_path):
    estimator = regressor(numWorkers=None, epochs=None, batchSize=ROWS // 2, runDir=str(tmp_path))
    fitted = estimator.fit(data)
    assert (len(fitted.history), fitted.report["workers"]) == (10, [2])
    assert json.loads((tmp_path / "config.json").read_text())["numWorkers"] == 2


def test_run_takes_the_workers_of_its_checkpoint_again(data, tmp_path):
    parallelism = data.sparkSession.sparkContext.defaultParallelism
    free = {"strategy": ParallelSGD(rounds=2), "numWorkers": None}
    for name, fixed, more in (
        ("gang", {"epochs": 2, "numWorkers": 1}, {"epochs": 3, "numWorkers": None}),
        ("rounds", {**free, "numWorkers": 3}, {**free, "strategy": ParallelSGD(rounds=3)}),
    ):
        fit = partial(rows.regressor, runDir=str(tmp_path / name))
        fit(**fixed).fit(data)
        if name == "rounds":  # a refused fit leaves the number of the run as it was
            with pytest.raises(InvalidInput):
                fit(**{**more, "numWorkers": 1}).fit(data)
        assert fit(**more).fit(data).report["workers"] == [3 if name == "rounds" else 1]
    assert rows.regressor(**free).fit(data).report["workers"] == [parallelism]


@pytest.mark.parametrize(
    ("values", "ignored"),
    [
        ({"monitor": "loss", "minDelta": 0.5, "keepBest": False}, ["monitor", "minDelta"]),
        ({"monitorMode": "min", "schedulerInterval": "step"}, ["monitorMode", "schedulerInterval"]),
        ({"monitor": "loss", "scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)}, ["monitor"]),
        ({"monitor": "loss", "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}, []),
        ({"monitor": "loss", "patience": 1}, []),
    ],
)
def test_settings_without_effect_are_warned_of(values, ignored):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regressor(**values).warn_of_ignored()
    assert sorted(str(warning.message).partition("=")[0] for warning in caught) == sorted(ignored)


def test_classes_from_vectors_and_booleans(data):
    vectors = data.select(array_to_vector("x").alias("features"), (F.col("label") > 0).alias("label"))
    scored = TorchClassifier(model=nets.scores, numWorkers=2, batchSize=16).fit(vectors).transform(vectors)
    assert scored.columns == ["features", "label", "rawPrediction", "probability", "prediction"]
    assert {len(row["probability"]) for row in scored.collect()} == {3}


def test_several_inputs_of_several_kinds(data):
    mixed = data.selectExpr(
        "array(array(x[0], x[1]), array(x[2], 1.0)) as image", "cast(row % 4 as smallint) as kind", "x[1] as price", "y"
    )
    net, still = partial(nets.Scaled, scale=0.01), partial(torch.optim.SGD, lr=0.0)
    model = rows.regressor(model=net, inputCols=["image", "kind", "price"], idCol=None, optimizer=still).fit(mixed)
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
