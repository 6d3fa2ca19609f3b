"""Searches with a runDir: every map and every fold has a directory of its own, and the same search again finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator
from pyspark.sql import functions as F

from sparkdl.ml import param_maps
from sparkdl.spark.fingerprint import fingerprint
from tests.ml.test_tuning import grid_of, regressor, sgd
from tests.sessions import frame

ROOT = Path(__file__).resolve().parents[2]
ROWS = 60
X = np.random.default_rng(7).normal(size=(ROWS, 3))
ARRAYS = {"row": np.arange(ROWS), "x": X, "y": X @ [1.0, -2.0, 0.5]}


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory):
    found = str(tmp_path_factory.mktemp("data") / "rows")
    frame(ARRAYS).repartition(3).write.parquet(found)
    return found


# ---- which directory -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch):
    """The directory that an estimator would take below ``runs``, for rows that a string stands for."""
    monkeypatch.setattr(param_maps, "fingerprint", lambda rows, columns: rows)

    def folder(estimator: Any, rows: str = "all") -> str:
        found = estimator.run_directory(rows, estimator.read_columns())
        return str(Path(found).relative_to("runs"))

    return folder


def test_maps_and_rows_tell_directories_apart(folder):
    estimator = regressor(runDir="runs")
    assert (folder(estimator), folder(estimator.copy())) == (".", ".")
    maps = [
        {},
        {estimator.epochs: 2},
        {estimator.epochs: 3},
        {estimator.seed: 2},
        {estimator.epochs: 2, estimator.seed: 2},
        {estimator.optimizer: sgd(0.1)},
        {estimator.optimizer: sgd(0.2)},
        {estimator.optimizer: lambda parameters: torch.optim.SGD(parameters, lr=0.1)},
        {estimator.optimizer: lambda parameters: torch.optim.SGD(parameters, lr=0.2)},
    ]
    found = [folder(estimator.copy(given), rows) for given in maps for rows in ("fold 1", "fold 2", "all")]
    assert len({*found}) == 3 * len(maps)
    assert all(len(name) == 16 for name in found)
    assert found == [folder(estimator.copy(given), rows) for given in maps for rows in ("fold 1", "fold 2", "all")]


def test_copies_of_copies_remember(folder):
    estimator = regressor(runDir="runs")
    epochs, seed = {estimator.epochs: 2}, {estimator.seed: 3}
    at_once = folder(estimator.copy(epochs | seed))
    assert folder(estimator.copy(epochs).copy(seed)) == folder(estimator.copy(seed).copy(epochs).copy()) == at_once


def test_a_map_with_a_directory_means_that_one():
    estimator = regressor(runDir="runs")
    copied = estimator.copy({estimator.runDir: "elsewhere", estimator.epochs: 2})
    assert copied.run_directory(None, copied.read_columns()) == "elsewhere"
    bare = regressor()
    copied = bare.copy({bare.epochs: 2})
    assert copied.run_directory(None, copied.read_columns()) is None


def test_stages_of_a_pipeline_have_the_map_too(folder):
    estimator, other = regressor(runDir="runs"), regressor()
    pipeline = Pipeline(stages=[other, estimator])
    assert folder(pipeline.getStages()[1]) == "."
    (_, mine), (_, others) = (pipeline.copy(given).getStages() for given in ({estimator.seed: 3}, {other.seed: 3}))
    assert folder(mine) == folder(estimator.copy({estimator.seed: 3}))
    assert folder(others) == folder(estimator.copy({}))  # its rows may differ by what the other stage does


def test_the_hash_is_the_same_in_another_process():
    values = {"epochs": 3, "optimizer": partial(torch.optim.SGD, lr=0.1), "inputCols": ["x"], "maxGradNorm": 0.5}
    values["loss"] = lambda output, target: output - target
    script = (
        "import torch\nfrom functools import partial\nfrom sparkdl.ml.param_maps import map_hash\n"
        "values = {'maxGradNorm': 0.5, 'inputCols': ['x'], 'epochs': 3, 'optimizer': partial(torch.optim.SGD, "
        "lr=0.1)}\n"
        "values['loss'] = lambda output, target: output - target\n"
        "print(map_hash(values, 'all'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert found.stdout.strip() == param_maps.map_hash(values, "all")


def test_rows_are_told_apart_by_what_is_in_them(spark, path):
    data = spark.read.parquet(path)
    columns = regressor().read_columns()
    whole = fingerprint(data, columns)
    assert whole.startswith(f"{ROWS} rows, ")
    assert fingerprint(data.repartition(5).orderBy("y").withColumn("more", F.lit(1)), columns) == whole
    assert fingerprint(frame(ARRAYS), columns) == whole
    other = data.withColumn("y", F.when(F.col("row") == 7, 0.0).otherwise(F.col("y")))
    assert len({whole, fingerprint(other, columns), fingerprint(data.where("row != 7"), columns)}) == 3
    assert fingerprint(data.where("false"), columns) == "0 rows, 0"


# ---- searches --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notes:
    """A hook that leaves a file at every step."""

    folder: str

    def on_step(self, run: Any) -> None:
        """A step was taken."""
        Path(self.folder, f"{os.getpid()} {run.clock.step}").touch()


def search(make: Any, **given: Any) -> CrossValidator:
    """Two maps and two folds; one of the maps differs in what makes no other run."""
    estimator = regressor(batchSize=20, **given)
    return CrossValidator(
        estimator=make(estimator),
        estimatorParamMaps=grid_of(estimator, epochs=[1, 2]),
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        seed=1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda stage: stage, lambda stage: Pipeline(stages=[stage])], ids=["alone", "pipe"])
def test_a_search_again_takes_no_step(spark, path, tmp_path, make):
    kept: dict[str, Any] = {"runDir": str(tmp_path / "runs"), "checkpointInterval": 2}
    plain = search(make).fit(spark.read.parquet(path))
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = search(make, hooks=[Notes(str(tmp_path / "first"))], **kept).fit(spark.read.parquet(path))
    assert first.avgMetrics == pytest.approx(plain.avgMetrics, rel=1e-12)
    assert list((tmp_path / "first").iterdir())
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 5  # two maps on two folds, and the better one on all rows
    assert all((each / "checkpoints").is_dir() and (each / "report.json").exists() for each in folders)
    second = search(make, hooks=[Notes(str(tmp_path / "second"))], **kept).fit(spark.read.parquet(path))
    assert second.avgMetrics == pytest.approx(plain.avgMetrics, rel=1e-12)
    assert not list((tmp_path / "second").iterdir())
    assert sorted((tmp_path / "runs").iterdir()) == folders


@pytest.mark.slow
def test_a_fit_with_a_map_and_one_without_share_a_directory(spark, path, tmp_path):
    data = spark.read.parquet(path)
    estimator = regressor(runDir=str(tmp_path), checkpointInterval=2)
    estimator.fit(data)
    models = estimator.fit(data, [{}, {estimator.batchSize: 20}])
    assert [model.history[-1]["step"] for model in models] == [2, 6]
    assert len([each for each in tmp_path.iterdir() if (each / "history.json").exists()]) == 2
    assert (tmp_path / "history.json").exists()
