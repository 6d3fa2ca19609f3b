"""Runs in MLflow's own store, read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkdl import TorchClassifier, TorchModel, __version__
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.formatting import format_full_value
from sparkdl.ml.run import Run
from sparkdl.ml.tracking import MLflow
from tests.ml import nets
from tests.ml.tracking.events_told import CONFIGURATION, ENVIRONMENT, REPORT, Told, epoch
from tests.object_store import object_store


@pytest.fixture(autouse=True)
def _no_hook_fails():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* failed: ")
        yield


@pytest.fixture(autouse=True)
def _global_uri_stays(_alone):
    import mlflow

    before = mlflow.get_tracking_uri()
    yield
    assert mlflow.get_tracking_uri() == before


@pytest.fixture
def default(store, monkeypatch):
    """The store is the one that MLflow takes by itself, as a user has set it."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert mlflow.get_tracking_uri() == store
    yield store
    while mlflow.active_run() is not None:
        mlflow.end_run()
    monkeypatch.undo()


def client(uri):
    import mlflow

    return mlflow.MlflowClient(uri)


def runs(uri, experiment="digits"):
    found = client(uri)
    return found.search_runs([found.get_experiment_by_name(experiment).experiment_id], order_by=["start_time ASC"])


def curve(uri, run, key):
    return [(each.step, each.value) for each in client(uri).get_metric_history(run.info.run_id, key)]


def artifact(run, name):
    return Path(run.info.artifact_uri.removeprefix("file://"), name).read_text()


def test_a_run_has_parameters_metrics_tags_and_artifacts(store, tmp_path):
    rows = [epoch(1), epoch(2)]
    hook = MLflow("digits", store, run_name="first", tags={"team": "vision", "tries": 3})
    Run(str(tmp_path / "run")).save("config", CONFIGURATION)
    run = Told(hook, directory=str(tmp_path / "run"), strategy=["a", 1])
    run.step(1, None)
    run.step(2, 0.75)
    run.rows(*rows)
    run.end(rows)
    (found,) = runs(store)
    assert found.info.status == "FINISHED"
    assert found.data.params == {
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in CONFIGURATION.items()},
        "runDir": str(tmp_path / "run"),
        "strategy": '["a", 1]',
    }
    for name in ("loss", "valid_loss", "seconds", "rows_per_second", "step", "samples"):
        assert curve(store, found, name) == [(row["epoch"], row[name]) for row in rows]
    assert curve(store, found, "step_loss") == [(2, 0.75)]
    assert curve(store, found, "step_rows_per_second") == [(1, 64.0), (2, 64.0)]
    tags = found.data.tags
    assert {name: tags[name] for name in ("team", "tries", "sparkdl.version", "mlflow.runName")} == {
        "team": "vision",
        "tries": "3",
        "sparkdl.version": __version__,
        "mlflow.runName": "first",
    }
    assert tags["sparkdl.runDir"] == str(tmp_path / "run")
    assert "mlflow.user" in tags
    assert json.loads(artifact(found, "history.json")) == rows
    assert json.loads(artifact(found, "report.json")) == REPORT
    assert json.loads(artifact(found, "environment.json")) == ENVIRONMENT


def test_the_report_page_is_an_artifact_where_plotly_is(store):
    pytest.importorskip("plotly")
    run = Told(MLflow("digits", store))
    run.rows(epoch(1))
    run.end([epoch(1)])
    assert "<html" in artifact(runs(store)[0], "report.html")


def test_rounds_are_metrics_by_their_number(store):
    rows = [{"round": number, "primal": 1 / number, "status": "going", "seconds": 1.0} for number in (1, 2)]
    run = Told(MLflow("digits", store))
    run.rows(*({**row, "rounds": 9} for row in rows))
    run.end(rows)
    (found,) = runs(store)
    assert curve(store, found, "primal") == [(1, 1.0), (2, 0.5)]
    assert set(found.data.metrics) == {"primal", "seconds"}


def test_a_row_is_there_before_the_next_one_comes(store):
    run = Told(MLflow("digits", store))
    run.rows(epoch(1))
    (found,) = runs(store)
    assert (found.info.status, curve(store, found, "loss")) == ("RUNNING", [(1, 1.0)])
    run.end()


@pytest.mark.parametrize(
    ("error", "status"),
    [("WorkerFailed: out of memory", "FAILED"), ("Stopped: saved at step 3", "KILLED"), (None, "FINISHED")],
)
def test_a_run_ends_as_the_fit_does(store, error, status):
    run = Told(MLflow("digits", store))
    run.rows(epoch(1))
    run.end(error=error)
    (found,) = runs(store)
    assert (found.info.status, found.data.tags.get("sparkdl.error")) == (status, error)
    assert len(json.loads(artifact(found, "history.json"))) == 1


def test_a_run_that_goes_on_is_another_run_with_all_rows(store, tmp_path):
    Run(str(tmp_path)).save("config", CONFIGURATION)
    for rows, restored in (((epoch(1), epoch(2)), ()), ((epoch(3),), (epoch(1), epoch(2)))):
        run = Told(MLflow("digits", store), directory=str(tmp_path))
        run.restored(*restored)
        run.rows(*rows)
        run.end([*restored, *rows])
    first, second = runs(store)
    assert curve(store, first, "loss") == [(1, 1.0), (2, 0.5)]
    assert curve(store, second, "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert first.data.tags["sparkdl.runDir"] == second.data.tags["sparkdl.runDir"] == str(tmp_path)


def test_the_run_that_is_active_is_used_and_not_ended(default):
    import mlflow

    experiment = client(default).create_experiment("mine")
    with mlflow.start_run(experiment_id=experiment, run_name="own") as own:
        mlflow.log_param("batchSize", 7)
        with pytest.warns(UserWarning, match="has other values of batchSize, which stay as they are"):
            run = Told(MLflow())
        with ThreadPoolExecutor(1) as thread:  # where no run is active
            thread.submit(run.rows, epoch(1)).result()
        run.end([epoch(1)])
        mlflow.log_metric("after", 1.0)
        assert mlflow.active_run().info.run_id == own.info.run_id
    (found,) = runs(default, "mine")
    assert (found.info.run_id, found.info.run_name, found.info.status) == (own.info.run_id, "own", "FINISHED")
    assert (found.data.params["batchSize"], found.data.params["precision"]) == ("7", "fp32")
    assert (found.data.metrics["loss"], found.data.metrics["after"]) == (1.0, 1.0)
    assert found.data.tags["sparkdl.version"] == __version__


def test_without_an_experiment_it_is_the_one_that_mlflow_would_take(default, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the environment")
    Told(MLflow()).end()
    assert len(runs(default, "of the environment")) == 1


def test_with_a_name_the_fit_is_a_run_below_the_active_one(default):
    import mlflow

    with mlflow.start_run(experiment_id="0", run_name="search") as parent:
        for name in ("one", "two"):
            Told(MLflow(run_name=name)).end()
    children = client(default).search_runs(["0"], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert {each.info.run_name for each in children} == {"one", "two"}
    assert {each.info.status for each in children} == {"FINISHED"}


def test_another_experiment_than_that_of_the_active_run_is_refused(default):
    import mlflow

    with (
        mlflow.start_run(experiment_id="0"),
        pytest.raises(InvalidInput, match="experiment is 'digits', and the run that is active belongs to 'Default'"),
    ):
        Told(MLflow("digits"))


def test_an_active_run_of_another_store_is_left_alone(default, tmp_path):
    import mlflow

    with mlflow.start_run(experiment_id="0") as own:
        Told(MLflow(tracking_uri=(tmp_path / "other").as_uri())).end()
    assert client(default).get_run(own.info.run_id).data.params == {}
    assert len(runs((tmp_path / "other").as_uri(), "Default")) == 1


def test_a_run_is_called_by_what_is_fitted(store):
    Told(MLflow("digits", store)).end()
    assert runs(store)[0].info.run_name == "TorchClassifier run"


def test_a_long_parameter_is_cut_to_what_mlflow_takes(store):
    Told(MLflow("digits", store), model="x" * 20_000, columns=["y" * 7_000]).end()
    params = runs(store)[0].data.params
    assert (len(params["model"]), params["model"][-4:]) == (6_000, "x...")
    assert len(params["columns"]) == 6_000


def test_more_than_a_hundred_parameters_and_metrics_are_written(store):
    names = [f"name{number}" for number in range(250)]
    run = Told(MLflow("digits", store), **dict.fromkeys(names, 1))
    run.rows({"epoch": 1, **dict.fromkeys(names, 2.0)})
    run.end()
    (found,) = runs(store)
    assert len(found.data.params) >= 250
    assert len(found.data.metrics) == 250


def test_names_that_mlflow_refuses_are_written_with_underscores(store):
    run = Told(MLflow("digits", store))
    run.rows({"epoch": 1, "top@5 (%)": 0.5, "recall": [0.25, 0.5], "nan": math.nan})
    run.end()
    metrics = runs(store)[0].data.metrics
    assert metrics["top_5 ___"] == 0.5
    assert math.isnan(metrics["nan"])
    assert (metrics["recall/0"], metrics["recall/1"]) == (0.25, 0.5)


def test_secrets_of_uris_are_not_written(store, tmp_path):
    hook = MLflow("digits", "http://me:secret@127.0.0.1:1")
    assert "secret" not in format_full_value([hook]) + repr(hook)
    with object_store(tmp_path / "objects") as query:
        run = Told(MLflow("digits", store), directory=f"s3://key:secret@runs/digits?{query}")
        run.end()
    (found,) = runs(store)
    assert found.data.params["runDir"] == found.data.tags["sparkdl.runDir"] == "s3://runs/digits"


def test_an_experiment_that_is_deleted_is_refused(store):
    found = client(store)
    found.delete_experiment(found.create_experiment("digits"))
    with pytest.raises(InvalidInput, match="the experiment 'digits' is deleted; restore it"):
        Told(MLflow("digits", store))


def test_a_store_that_cannot_be_reached_refuses_the_fit(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(InvalidInput, match=r"MLflow cannot be used at http://127\.0\.0\.1:1: ") as refused:
        Told(MLflow("digits", "http://me:secret@127.0.0.1:1"))
    assert "secret" not in refused.value.message


def test_a_model_that_is_not_logged_cannot_be_registered():
    with pytest.raises(InvalidInput, match="registered_model_name is 'digits' and log_model is False"):
        MLflow(log_model=False, registered_model_name="digits")


def test_a_part_that_fails_costs_neither_the_others_nor_the_end(store, tmp_path):
    run = Told(MLflow("digits", store), directory=str(tmp_path))  # which holds no run to make a page of
    run.rows(epoch(1))
    with pytest.warns(RuntimeWarning, match="MLflow.on_end failed: InvalidInput: .* holds no run"):
        run.end([epoch(1)], error="WorkerFailed: x", model=TorchModel(factory=nets.scores, weights=pack(nets.scores())))
    (found,) = runs(store)
    assert (found.info.status, found.data.tags["sparkdl.error"]) == ("FAILED", "WorkerFailed: x")
    assert json.loads(artifact(found, "history.json")) == [epoch(1)]
    assert len(found.outputs.model_outputs) == 1


def test_an_estimator_is_saved_with_its_trackers_by_name(store):
    from sparkdl.ml.persistence import param_values

    hooks = [MLflow("digits", tags={"a": "b"}, code_paths=("own.py",))]
    estimator = TorchClassifier(hooks=hooks)
    described = param_values.describe(estimator.getHooks(), param_values.kinds_of("hooks"))
    assert param_values.resolve(json.loads(json.dumps(described)), param_values.kinds_of("hooks")) == hooks
