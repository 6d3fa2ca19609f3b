"""Searches of pyspark.ml, and their run directories."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit, TrainValidationSplitModel

from sparkdl.ml import param_maps
from sparkdl.serving.format.param_values import same
from tests.ml import rows
from tests.ml.rows import ROWS, Steps
from tests.ml.test_params import state


def sgd(rate: float) -> Any:
    return partial(torch.optim.SGD, lr=rate)


regressor = partial(rows.regressor, optimizer=sgd(0.1), batchSize=ROWS, epochs=2, precision="fp64")


def search(estimator: Any, grid: Any, **options: Any) -> TrainValidationSplit:
    given = {"estimator": estimator, "estimatorParamMaps": grid, "evaluator": RegressionEvaluator(labelCol="y")}
    return TrainValidationSplit(**given | {"trainRatio": 0.7, "seed": 1} | options)


def test_concurrent_fits_of_a_search_share_the_slots(data, tmp_path):
    """Two fits at a time have a slot each, and the fit of the best has both; a grid has any Param."""
    estimator = rows.regressor(numWorkers=None, batchSize=20, optimizer="sgd", validationIndicatorCol="valid")
    grid = ParamGridBuilder().baseOn({estimator.monitor: "loss", estimator.minDelta: 0.1, estimator.patience: 1})
    grid = grid.addGrid(estimator.learningRate, [0.0, 0.1]).addGrid(estimator.keepBest, [True, False])
    maps = grid.addGrid(estimator.epochs, [3]).build()
    fitted = search(estimator, maps, parallelism=2, collectSubModels=True).fit(data)
    reports = [model.report for model in fitted.subModels]
    assert [report["workers"] for report in reports] == [[1]] * 4
    assert [report["best_epoch"] for report in reports[:2]] == [1, 1]
    assert [len(model.history) for model in fitted.subModels[:2]] == [2, 2]
    assert fitted.bestModel.report["workers"] == [2]
    assert np.argmin(fitted.validationMetrics) in (2, 3)  # those that learn
    fitted.save(str(tmp_path / "search"))
    loaded = TrainValidationSplitModel.load(str(tmp_path / "search"))
    assert (loaded.uid, loaded.validationMetrics) == (fitted.uid, fitted.validationMetrics)
    assert (loaded.getEstimatorParamMaps(), len(loaded.subModels)) == (maps, 4)
    assert same(state(loaded.getEstimator()), state(estimator))
    assert loaded.transform(data).collect() == fitted.transform(data).collect()


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
    maps: list[Any] = [{}, {estimator.epochs: 2}, {estimator.seed: 2}, {estimator.epochs: 2, estimator.seed: 2}]
    maps += [{estimator.optimizer: sgd(rate)} for rate in (0.1, 0.2)]
    cases = [*itertools.product(maps, ("fold 1", "fold 2", "all"))]
    names, again = ([folder(estimator.copy(values), fold) for values, fold in cases] for _ in range(2))
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
        unfitted = search(Pipeline(stages=[estimator]), grid)
        return unfitted.fit(spark.read.parquet(path)).validationMetrics

    saved = {"runDir": str(tmp_path / "runs"), "checkpointInterval": 2}
    expected = fit(**saved, callbacks=[Steps(str(tmp_path / "first"))])
    assert (tmp_path / "first").exists()
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 3  # two maps, and the better one on all rows
    assert all((folder / "checkpoints").is_dir() and (folder / "report.json").exists() for folder in folders)
    assert fit(**saved, callbacks=[Steps(str(tmp_path / "second"))]) == pytest.approx(expected, rel=1e-12)
    assert not (tmp_path / "second").exists()
    assert sorted((tmp_path / "runs").iterdir()) == folders
