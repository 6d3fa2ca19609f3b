"""Fits by way of pyspark.ml's pipelines and searches; and class weights, which are those of torch alone."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.param import Param
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplit,
    TrainValidationSplitModel,
)
from torch import Tensor, nn

from sparkdl import AllReduce, TorchClassifier, TorchModel, TorchRegressor
from sparkdl.ml.persistence.param_values import same
from tests.ml import nets
from tests.ml.test_conventions import state
from tests.sessions import frame

ROWS = 60
RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(ROWS, 3))
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "y": X @ [1.0, -2.0, 0.5] + 0.25,
    "binary": (X @ [1.0, 1.0, -1.0] > 0.8).astype(np.float64),
    "several": np.clip(np.round(X[:, 0] + 0.4), 0, 2).astype(np.int64),
}


def sgd(rate: float) -> Any:
    return partial(torch.optim.SGD, lr=rate)


SETTINGS = {
    "optimizer": sgd(0.1),
    "inputCols": ["x"],
    "idCol": "row",
    "numWorkers": 2,
    "batchSize": ROWS,
    "epochs": 2,
    "precision": "fp64",
}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).cache()


def alone(module: nn.Module, loss: nn.Module, target: str, epochs: int) -> dict[str, Tensor]:
    """The weights that torch alone ends with, on full batches in double precision."""
    module, loss = module.double(), loss.double()
    optimizer = sgd(0.1)(module.parameters())
    x, y = torch.from_numpy(X), torch.from_numpy(ARRAYS[target])
    for _ in range(epochs):
        optimizer.zero_grad()
        loss(module(x).squeeze(-1), y).backward()
        optimizer.step()
    return module.state_dict()


# Torch's own mean divides by the sum of the rows' class weights for cross-entropy, and by the rows for pos_weight.
CLASS_WEIGHTS = {
    "cross-entropy": (nets.scores, nn.CrossEntropyLoss(weight=torch.tensor([0.25, 3.0, 1.5])), "several"),
    "binary": (nets.column, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0)), "binary"),
}


@pytest.mark.parametrize("name", CLASS_WEIGHTS)
def test_class_weights_are_those_of_torch_alone(data, name):
    factory, loss, label = CLASS_WEIGHTS[name]
    model = TorchClassifier(model=factory, loss=loss, labelCol=label, **SETTINGS).fit(data)
    expected = alone(factory(), copy.deepcopy(loss), label, SETTINGS["epochs"])
    torch.testing.assert_close(model.module().state_dict(), expected, rtol=0, atol=1e-10)


def regressor(**given: Any) -> TorchRegressor:
    return TorchRegressor(**SETTINGS | {"model": nets.column, "labelCol": "y"} | given)


def error_of(model: Any, data: Any) -> float:
    return RegressionEvaluator(labelCol="y").evaluate(model.transform(data))


def test_a_model_has_the_uid_and_the_params_of_its_estimator(data, tmp_path):
    estimator = regressor(numWorkers=1, predictionCol="p")
    fitted = Pipeline(stages=[estimator]).fit(data)
    (model,) = fitted.stages
    assert (model.uid, model.isSet("predictionCol"), model.isSet("thresholds")) == (estimator.uid, True, False)
    assert fitted.transform(data, {estimator.predictionCol: "q"}).columns[-1] == "q"
    assert model.transform(data, {model.predictionCol: "q"}).columns[-1] == "q"
    assert model.getPredictionCol() == "p"
    fitted.save(str(tmp_path / "pipeline"))
    (loaded,) = PipelineModel.load(str(tmp_path / "pipeline")).stages
    assert loaded.uid == model.uid
    assert same(state(loaded), state(model))


# ---- tuning ----------------------------------------------------------------------------------------------------------

TUNERS = {
    "CrossValidator": (partial(CrossValidator, numFolds=2, seed=1), CrossValidatorModel, "avgMetrics"),
    "TrainValidationSplit": (
        partial(TrainValidationSplit, trainRatio=0.7, seed=1),
        TrainValidationSplitModel,
        "validationMetrics",
    ),
}


def grid_of(estimator: Any, **values: list[Any]) -> list[dict[Param[Any], Any]]:
    builder = ParamGridBuilder()
    for name, some in values.items():
        builder.addGrid(estimator.getParam(name), some)
    return builder.build()


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_search_is_saved_before_it_is_run(spark, tmp_path, tuner):
    make, _, _ = TUNERS[tuner]
    estimator = regressor()
    grid = grid_of(estimator, batchSize=[10, 20], epochs=[1, 2], featuresCol=["x"])
    search = make(estimator=estimator, estimatorParamMaps=grid, evaluator=RegressionEvaluator(labelCol="y"))
    search.save(str(tmp_path / "search"))
    loaded = type(search).load(str(tmp_path / "search"))
    assert (loaded.uid, loaded.getEstimator().uid) == (search.uid, estimator.uid)
    assert loaded.getEstimatorParamMaps() == grid
    assert same(state(loaded.getEstimator()), state(estimator))


@pytest.mark.slow
def test_two_fits_at_a_time_wait_for_each_others_slots(data, tmp_path):
    """Each wants both of the two slots."""
    estimator = regressor(batchSize=20)
    grid = grid_of(estimator, optimizer=[sgd(0.0), sgd(0.1)])
    search = TrainValidationSplit(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        seed=1,
        parallelism=2,
        collectSubModels=True,
    )
    found = search.fit(data)
    assert found.validationMetrics[1] < found.validationMetrics[0]
    untrained = nets.column().double().state_dict()
    assert [same(model.module().state_dict(), untrained) for model in found.subModels] == [True, False]
    best = found.bestModel
    torch.testing.assert_close(
        best.module().state_dict(), regressor(batchSize=20).fit(data).module().state_dict(), rtol=0, atol=1e-12
    )
    with pytest.raises(TypeError, match="not JSON serializable"):  # pyspark saves maps of JSON alone
        found.save(str(tmp_path / "search"))
    best.save(str(tmp_path / "best"))
    assert error_of(TorchModel.load(str(tmp_path / "best")), data) == error_of(best, data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tuner", "parallelism"), [("CrossValidator", 1), ("CrossValidator", 2), ("TrainValidationSplit", 1)]
)
def test_a_search_finds_the_best_map_and_is_saved(data, tmp_path, tuner, parallelism):
    make, kind, metrics = TUNERS[tuner]
    estimator = regressor()
    grid = grid_of(estimator, batchSize=[15, ROWS], epochs=[1, 8])
    search = make(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        parallelism=parallelism,
        collectSubModels=True,
    )
    found = search.fit(data)
    (best,) = (place for place, given in enumerate(grid) if list(given.values()) == [15, 8])
    assert np.argmin(getattr(found, metrics)) == best
    assert found.bestModel.history[-1]["epoch"] == 8
    assert found.bestModel.history[-1]["step"] == 32
    found.save(str(tmp_path / "search"))
    loaded = kind.load(str(tmp_path / "search"))
    assert (loaded.uid, getattr(loaded, metrics)) == (found.uid, getattr(found, metrics))
    assert loaded.getEstimatorParamMaps() == grid
    assert np.shape(loaded.subModels) == np.shape(found.subModels)
    assert error_of(loaded, data) == error_of(found, data)


@pytest.mark.slow
def test_strategies_are_searched_like_other_params(data):
    """Buckets of another size are the same mean: the weights, and so what is measured, agree."""
    estimator = regressor()
    grid = grid_of(estimator, strategy=[AllReduce(), AllReduce(bucket_bytes=16)], model=[nets.column, nets.Line])
    search = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        seed=1,
        parallelism=2,
    )
    metrics = search.fit(data).avgMetrics
    assert metrics == pytest.approx(metrics[:1] * 4, rel=1e-12)
