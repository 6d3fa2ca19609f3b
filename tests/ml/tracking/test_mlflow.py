"""Runs in MLflow's own store, read by MLflow's own client."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import pytest

from sparkdl import InvalidInput, TorchModel, __version__
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.formatting import format_full_value
from sparkdl.ml.run import Run
from sparkdl.ml.tracking import MLflow
from tests.ml import nets
from tests.ml.tracking.fake_run import CONFIGURATION, ENVIRONMENT, REPORT, FakeRun, epoch, runs
from tests.object_store import object_store


@pytest.fixture(autouse=True)
def _global_uri_stays(_alone):
    before = mlflow.get_tracking_uri()
    yield
    assert mlflow.get_tracking_uri() == before


@pytest.fixture
def default(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert mlflow.get_tracking_uri() == store
    yield store
    while mlflow.active_run() is not None:
        mlflow.end_run()
    monkeypatch.undo()


def curve(uri, run, key):
    return [(metric.step, metric.value) for metric in mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, key)]


def artifact(run, name):
    return Path(run.info.artifact_uri.removeprefix("file://"), name).read_text()


def test_parameters_metrics_tags_and_artifacts(store, tmp_path):
    rows, directory = [epoch(1), epoch(2)], str(tmp_path / "run")
    callback = MLflow("digits", store, run_name="first", tags={"team": "vision", "tries": 3})
    Run(directory).save("config", CONFIGURATION)
    run = FakeRun(callback, directory=directory, strategy=["a", 1])
    run.step(1, None)
    run.step(2, 0.75)
    run.rows(rows[0])
    (logged,) = runs(store)
    assert (logged.info.status, curve(store, logged, "loss")) == ("RUNNING", [(1, 1.0)])  # before the next row
    run.rows(rows[1])
    run.end(rows)
    (logged,) = runs(store)
    assert logged.info.status == "FINISHED"
    assert logged.data.params == {
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in CONFIGURATION.items()},
        "runDir": directory,
        "strategy": '["a", 1]',
    }
    for name in ("loss", "valid_loss", "seconds", "rows_per_second", "step", "samples"):
        assert curve(store, logged, name) == [(row["epoch"], row[name]) for row in rows]
    assert curve(store, logged, "step_loss") == [(2, 0.75)]
    assert curve(store, logged, "step_rows_per_second") == [(1, 64.0), (2, 64.0)]
    tags = {"team": "vision", "tries": "3", "sparkdl.version": __version__, "mlflow.runName": "first"}
    tags["sparkdl.runDir"] = directory
    assert tags.items() <= logged.data.tags.items()
    assert "mlflow.user" in logged.data.tags
    assert json.loads(artifact(logged, "history.json")) == rows
    assert json.loads(artifact(logged, "report.json")) == REPORT
    assert json.loads(artifact(logged, "environment.json")) == ENVIRONMENT
    assert "<html" in artifact(logged, "report.html")


def test_trials_of_a_search_are_child_runs(store):
    shared = {"params": {"learningRate": 0.1}, "seconds": 1.0}
    trials = [
        {**shared, "number": 0, "state": "finished", "history": [2.0, 1.0], "error": None},
        {**shared, "number": 1, "state": "failed", "history": [], "error": "WorkerFailed: no memory"},
    ]
    rows = [{"trial": trial["number"], "value": 1.0, "learningRate": 0.1} for trial in trials]
    run = FakeRun(MLflow("digits", store, log_model=False))
    run.end(rows, report={**REPORT, "trials": trials})
    logged = {one.info.run_name: one for one in runs(store)}
    parent = logged.pop("TorchClassifier run")
    assert curve(store, parent, "value") == [(0, 1.0), (1, 1.0)]
    assert sorted(logged) == ["trial 0", "trial 1"]
    for name, state, status, values in (
        ("trial 0", "finished", "FINISHED", [(1, 2.0), (2, 1.0)]),
        ("trial 1", "failed", "FAILED", []),
    ):
        tags = logged[name].data.tags
        assert (tags["mlflow.parentRunId"], tags["sparkdl.state"]) == (parent.info.run_id, state)
        assert (logged[name].info.status, logged[name].data.params) == (status, {"learningRate": "0.1"})
        assert curve(store, logged[name], "value") == values
    assert logged["trial 1"].data.tags["sparkdl.error"] == "WorkerFailed: no memory"


def test_numbers_of_rounds_and_names_that_mlflow_does_not_allow(store):
    rows = [{"round": number, "primal": 1 / number, "status": "going", "seconds": 1.0} for number in (1, 2)]
    more = {"top@5 (%)": 0.5, "recall": [0.25, 0.5], "range": {"min": 0.0}, "table": [[1, 2], [3, 4]], "nan": math.nan}
    run = FakeRun(MLflow("digits", store))
    run.rows(*({**row, "rounds": 9, **more} for row in rows))
    run.end(rows)
    (logged,) = runs(store)
    assert curve(store, logged, "primal") == [(1, 1.0), (2, 0.5)]
    metrics = logged.data.metrics
    assert math.isnan(metrics.pop("nan"))
    numbers = {"top_5 ___": 0.5, "recall/0": 0.25, "recall/1": 0.5, "range/min": 0.0}
    assert metrics == {"primal": 0.5, "seconds": 1.0, **numbers}
    assert logged.info.run_name == "TorchClassifier run"


def test_active_run_is_used_and_not_ended(default):
    experiment = mlflow.MlflowClient(default).create_experiment("mine")
    with mlflow.start_run(experiment_id=experiment, run_name="own") as own:
        mlflow.log_param("batchSize", 7)
        with pytest.warns(UserWarning, match=r"active MLflow run .* batchSize"):
            run = FakeRun(MLflow())
        with ThreadPoolExecutor(1) as thread:  # where no run is active
            thread.submit(run.rows, epoch(1)).result()
        run.end([epoch(1)])
        mlflow.log_metric("after", 1.0)
        assert mlflow.active_run().info.run_id == own.info.run_id
    (logged,) = runs(default, "mine")
    assert (logged.info.run_id, logged.info.run_name, logged.info.status) == (own.info.run_id, "own", "FINISHED")
    assert (logged.data.params["batchSize"], logged.data.params["precision"]) == ("7", "fp32")
    assert (logged.data.metrics["loss"], logged.data.metrics["after"]) == (1.0, 1.0)
    assert logged.data.tags["sparkdl.version"] == __version__


def test_experiment_and_store_beside_an_active_run(default, tmp_path, monkeypatch):
    other = (tmp_path / "other").as_uri()
    with mlflow.start_run(experiment_id="0", run_name="search") as parent:
        for name in ("one", "two"):  # a name makes a child run
            FakeRun(MLflow(run_name=name)).end()
        with pytest.raises(InvalidInput, match=r"experiment is 'digits'.*'Default'"):
            FakeRun(MLflow("digits"))
        FakeRun(MLflow(tracking_uri=other)).end()
    children = mlflow.MlflowClient(default).search_runs(["0"], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert {(run.info.run_name, run.info.status) for run in children} == {("one", "FINISHED"), ("two", "FINISHED")}
    assert mlflow.MlflowClient(default).get_run(parent.info.run_id).data.params == {}
    assert len(runs(other, "Default")) == 1
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the environment")
    FakeRun(MLflow()).end()
    assert len(runs(default, "of the environment")) == 1


def test_long_parameters_and_hundreds_of_metrics(store):
    names = [f"name{number}" for number in range(250)]
    long = {"model": "x" * 20_000, "columns": ["y" * 7_000]}
    run = FakeRun(MLflow("digits", store), **dict.fromkeys(names, 1) | long)
    run.rows({"epoch": 1, **dict.fromkeys(names, 2.0)})
    run.end()
    (logged,) = runs(store)
    params = logged.data.params
    assert (len(params["model"]), params["model"][-4:], len(params["columns"])) == (6_000, "x...", 6_000)
    assert len(params) >= 250
    assert len(logged.data.metrics) == 250


def test_secrets_of_uris_are_not_written(store, tmp_path):
    callback = MLflow("digits", "http://me:secret@127.0.0.1:1")
    assert "secret" not in format_full_value([callback]) + repr(callback)
    with object_store(tmp_path / "objects") as query:
        FakeRun(MLflow("digits", store), directory=f"s3://key:secret@runs/digits?{query}").end()
    (logged,) = runs(store)
    assert logged.data.params["runDir"] == logged.data.tags["sparkdl.runDir"] == "s3://runs/digits"


def test_invalid_settings_raise(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.MlflowClient(store).delete_experiment(mlflow.MlflowClient(store).create_experiment("digits"))
    with pytest.raises(InvalidInput, match="experiment 'digits' is deleted; restore it"):
        FakeRun(MLflow("digits", store))
    with pytest.raises(InvalidInput, match=r"MLflow .* http://127\.0\.0\.1:1: ") as caught:
        FakeRun(MLflow("digits", "http://me:secret@127.0.0.1:1"))
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidInput, match=r"registered_model_name is 'digits'.*log_model"):
        MLflow(log_model=False, registered_model_name="digits")


@pytest.mark.parametrize(("error", "status"), [("WorkerFailed: x", "FAILED"), ("Stopped: saved at 3", "KILLED")])
def test_failure_of_an_artifact_costs_neither_the_others_nor_the_status(store, tmp_path, error, status):
    run = FakeRun(MLflow("digits", store), directory=str(tmp_path))  # which has no run for a page
    run.rows(epoch(1))
    model = TorchModel(factory=nets.scores, weights=pack(nets.scores()))
    with pytest.warns(RuntimeWarning, match=r"MLflow\.on_end failed: InvalidInput"):
        run.end([epoch(1)], error=error, model=model)
    (logged,) = runs(store)
    assert (logged.info.status, logged.data.tags["sparkdl.error"]) == (status, error)
    assert json.loads(artifact(logged, "history.json")) == [epoch(1)]
    assert len(logged.outputs.model_outputs) == 1
