"""Searches of pyspark.ml, and their run directories."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit

from sparkdl.ml import param_maps
from sparkdl.ml.persistence.param_values import same
from tests.ml import rows
from tests.ml.rows import ROWS, Steps
from tests.ml.test_params import state


def sgd(rate: float) -> Any:
    return partial(torch.optim.SGD, lr=rate)


regressor = partial(rows.regressor, optimizer=sgd(0.1), batchSize=ROWS, epochs=2, precision="fp64")


def search(estimator: Any, grid: Any, kind: Any, **options: Any) -> Any:
    folds = {"numFolds": 2} if kind is CrossValidator else {"trainRatio": 0.7}
    evaluator = RegressionEvaluator(labelCol="y")
    return kind(estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, seed=1, **folds | options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CrossValidator, TrainValidationSplit])
def test_concurrent_search(data, tmp_path, kind):
    """Each fit needs both slots."""
    estimator = regressor()
    grid = ParamGridBuilder().addGrid(estimator.batchSize, [30, ROWS]).addGrid(estimator.epochs, [1, 8]).build()[1:]
    fitted = search(estimator, grid, kind, collectSubModels=True, parallelism=2).fit(data)
    (best,) = (index for index, values in enumerate(grid) if list(values.values()) == [30, 8])
    metrics = "avgMetrics" if kind is CrossValidator else "validationMetrics"
    assert np.argmin(getattr(fitted, metrics)) == best
    assert (fitted.bestModel.history[-1]["epoch"], fitted.bestModel.history[-1]["step"]) == (8, 32)
    weights, expected = fitted.bestModel.module().state_dict(), regressor(batchSize=30, epochs=8).fit(data).module()
    torch.testing.assert_close(weights, expected.state_dict(), rtol=0, atol=1e-12)
    fitted.save(str(tmp_path / "search"))
    loaded = type(fitted).load(str(tmp_path / "search"))
    assert (loaded.uid, getattr(loaded, metrics)) == (fitted.uid, getattr(fitted, metrics))
    assert loaded.getEstimatorParamMaps() == grid
    assert same(state(loaded.getEstimator()), state(estimator))
    assert np.shape(loaded.subModels) == np.shape(fitted.subModels)
    evaluator = RegressionEvaluator(labelCol="y")
    assert evaluator.evaluate(loaded.transform(data)) == evaluator.evaluate(fitted.transform(data))


def test_concurrent_fits_of_a_search_share_the_slots(data):
    """Two fits at a time have a slot each, and the fit of the best has both; a grid has any Param."""
    estimator = rows.regressor(numWorkers=None, batchSize=20, optimizer="sgd", validationIndicatorCol="valid")
    grid = ParamGridBuilder().baseOn({estimator.monitor: "loss", estimator.minDelta: 0.1, estimator.patience: 1})
    grid = grid.addGrid(estimator.learningRate, [0.0, 0.1]).addGrid(estimator.keepBest, [True, False])
    maps = grid.addGrid(estimator.epochs, [3]).build()
    fitted = search(estimator, maps, TrainValidationSplit, parallelism=2, collectSubModels=True).fit(data)
    reports = [model.report for model in fitted.subModels]
    assert [report["workers"] for report in reports] == [[1]] * 4
    assert [report["best_epoch"] for report in reports[:2]] == [1, 1]
    assert [len(model.history) for model in fitted.subModels[:2]] == [2, 2]
    assert fitted.bestModel.report["workers"] == [2]


@pytest.fixture
def folder(monkeypatch):
    """The directory of a fit below ``runs``; a string stands for the rows."""
    monkeypatch.setattr(param_maps, "fingerprint", lambda rows, columns: rows)

    def folder(estimator: Any, rows: str = "all") -> str:
        return str(Path(estimator.run_directory(rows, estimator.read_columns())).relative_to("runs"))

    return folder


def test_maps_and_rows_have_their_own_directories(folder):
    estimator = regressor(runDir="runs")
    assert (folder(estimator), folder(estimator.copy())) == (".", ".")
    maps = [
        {},
        {estimator.epochs: 2},
        {estimator.seed: 2},
        {estimator.epochs: 2, estimator.seed: 2},
        {estimator.optimizer: sgd(0.1)},
        {estimator.optimizer: sgd(0.2)},
    ]
    names, again = (
        [folder(estimator.copy(values), fold) for values in maps for fold in ("fold 1", "fold 2", "all")]
        for _ in range(2)
    )
    assert len({*names}) == 3 * len(maps)
    assert all(len(name) == 16 for name in names)
    assert names == again
    epochs, seed = {estimator.epochs: 2}, {estimator.seed: 3}
    both = folder(estimator.copy(epochs | seed))
    assert folder(estimator.copy(epochs).copy(seed)) == folder(estimator.copy(seed).copy(epochs).copy()) == both
    bare = regressor()
    assert estimator.copy({estimator.runDir: "elsewhere", **epochs}).run_directory("all", None) == "elsewhere"
    assert bare.copy({bare.epochs: 2}).run_directory("all", None) is None


def test_stages_of_a_pipeline_have_the_map(folder):
    estimator, other = regressor(runDir="runs"), regressor()
    pipeline = Pipeline(stages=[other, estimator])
    assert folder(pipeline.getStages()[1]) == "."
    (_, first), (_, second) = (pipeline.copy(values).getStages() for values in ({estimator.seed: 3}, {other.seed: 3}))
    assert folder(first) == folder(estimator.copy({estimator.seed: 3}))
    assert folder(second) == folder(estimator.copy({}))  # the other stage may change its rows


@pytest.mark.slow
def test_repeated_search_takes_no_step(spark, data, tmp_path):
    path = str(tmp_path / "rows")
    data.repartition(3).write.parquet(path)

    def fit(**values: Any) -> Any:
        estimator = regressor(batchSize=40, **values)
        grid = ParamGridBuilder().addGrid(estimator.epochs, [1, 2]).build()
        unfitted = search(Pipeline(stages=[estimator]), grid, TrainValidationSplit)
        return unfitted.fit(spark.read.parquet(path)).validationMetrics

    expected, saved = fit(), {"runDir": str(tmp_path / "runs"), "checkpointInterval": 2}
    assert fit(**saved, callbacks=[Steps(str(tmp_path / "first"))]) == pytest.approx(expected, rel=1e-12)
    assert (tmp_path / "first").exists()
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 3  # two maps, and the better one on all rows
    assert all((folder / "checkpoints").is_dir() and (folder / "report.json").exists() for folder in folders)
    assert fit(**saved, callbacks=[Steps(str(tmp_path / "second"))]) == pytest.approx(expected, rel=1e-12)
    assert not (tmp_path / "second").exists()
    assert sorted((tmp_path / "runs").iterdir()) == folders


@pytest.mark.slow
def test_fits_with_and_without_a_map_share_a_directory(data, tmp_path):
    estimator = regressor(runDir=str(tmp_path), checkpointInterval=2)
    estimator.fit(data)
    models = estimator.fit(data, [{}, {estimator.batchSize: 40, estimator.predictionCol: "p"}])
    assert [model.history[-1]["step"] for model in models] == [2, 6]
    assert [model.getPredictionCol() for model in models] == ["prediction", "p"]
    assert estimator.getBatchSize() == ROWS
    assert len(list(tmp_path.glob("*/history.json"))) == 2
    assert (tmp_path / "history.json").exists()
