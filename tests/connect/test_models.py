"""Models in a session of Spark Connect: saved, loaded, evaluated and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest
from pyspark.ml import Pipeline
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.ml.tracking import MLflow
from tests.connect.fits import NAMES, ROWS, Plane, classifier, digests, pipeline, resaved_pipeline, rows
from tests.sessions import ROOT

pytestmark = pytest.mark.slow


def test_pipelines_load_in_both_kinds_of_session(server: Any, spark: SparkSession, tmp_path: Any) -> None:
    remote, classic = str(tmp_path / "remote"), str(tmp_path / "classic")
    data = rows(spark)
    model: Any = pipeline().fit(data)
    expected = digests(model.stages[1], model.stages[0].transform(data))
    model.save(remote)
    assert server.call(resaved_pipeline, remote, classic) == expected
    assert resaved_pipeline(spark, classic, None) == expected


def test_unfitted_pipeline_is_loaded_as_it_was(spark: SparkSession, tmp_path: Any) -> None:
    path, stages = str(tmp_path / "pipeline"), pipeline()
    stages.save(path)
    loaded, expected = Pipeline.load(path).getStages(), stages.getStages()
    assert [stage.uid for stage in loaded] == [stage.uid for stage in expected]
    assert loaded[0].getOrDefault("inputCols") == NAMES
    assert (loaded[1].getModel(), loaded[1].getBatchSize()) == (nn.Linear, 64)


def test_server_that_writes_to_its_own_files_is_named(spark: SparkSession, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("sparkdl.ml.persistence.metadata_files.files.Folder.sizes", lambda *_: {})
    with pytest.raises(InvalidInput, match=r"the Spark server wrote .*/pipeline to its own files; expected a path"):
        pipeline().save(str(tmp_path / "pipeline"))


def test_evaluation_and_mlflow(spark: SparkSession, tmp_path: Any, monkeypatch: Any) -> None:
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    data, store = rows(spark), tmp_path.as_uri()
    tracker = MLflow("connect", store, log_model=True)
    model = classifier(model=Plane, modelArgs={}, trackers=[tracker]).fit(data)
    correct = model.transform(data).where("prediction = label").count()
    assert model.evaluate(data).accuracy == correct / ROWS
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("connect")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["loss"] == pytest.approx(model.history[-1]["loss"])
    assert run.outputs.model_outputs


def test_example_of_the_page_runs(server: Any, spark: SparkSession, tmp_path: Any) -> None:
    page = (Path(ROOT) / "docs" / "connect.md").read_text()
    (example,) = (block for block in page.split("```") if block.startswith("text\nfrom pyspark.sql"))
    code = example.removeprefix("text").replace("sc://host:15002", server.url).replace("/shared", str(tmp_path))
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["scored"].count() == 1000
