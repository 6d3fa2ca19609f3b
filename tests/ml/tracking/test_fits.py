"""Both trackers at real fits on Spark: gangs, rounds, runs that go on, runs that fail."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparkdl import MLflow, ParallelSGD, TensorBoard, TorchClassifier
from sparkdl.errors import InvalidInput, WorkerFailed
from tests.ml import nets
from tests.sessions import frame

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(120, 3))
ARRAYS = {"row": np.arange(120), "x": X, "label": (X.sum(1) > 0).astype(np.int64), "held": np.arange(120) % 4 == 0}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).repartition(2).cache()


def classifier(store, folder, **given):
    defaults = {
        "model": nets.scores,
        "optimizer": partial(torch.optim.SGD, lr=0.2),
        "inputCols": ["x"],
        "validationIndicatorCol": "held",
        "idCol": "row",
        "numWorkers": 2,
        "batchSize": 30,
        "epochs": 2,
        "runDir": str(folder),
        "hooks": [TensorBoard(), MLflow("digits", store)],
    }
    return TorchClassifier(**defaults | given)


def curve(folder, tag):
    return [(each.step, each.value) for each in EventAccumulator(str(folder)).Reload().Scalars(tag)]


def runs(store):
    import mlflow

    client = mlflow.MlflowClient(store)
    return client, client.search_runs(
        [client.get_experiment_by_name("digits").experiment_id], order_by=["start_time ASC"]
    )


def check(store, folder, model, data, number):
    """What is in both of a fit whose rows have these numbers: its history, and the model that predicts the same."""
    import mlflow

    client, (*_, run) = runs(store)
    steps = [row[number] for row in model.history]
    valid = [row["valid_loss"] for row in model.history]
    assert [step for step, _ in curve(folder / "tb", "valid/loss")] == steps
    np.testing.assert_allclose([value for _, value in curve(folder / "tb", "valid/loss")], valid, rtol=1e-6)
    logged = client.get_metric_history(run.info.run_id, "valid_loss")
    assert [(each.step, each.value) for each in logged] == list(zip(steps, valid, strict=True))
    assert run.info.status == "FINISHED"
    assert json.loads(run.data.params["inputCols"]) == ["x"]
    found = mlflow.pyfunc.load_model(client.get_logged_model(run.outputs.model_outputs[0].model_id).artifact_location)
    rows = model.transform(data).toPandas()
    given = found.predict(rows[["x"]])
    np.testing.assert_array_equal(given["prediction"], rows["prediction"])
    np.testing.assert_allclose(
        np.stack(list(given["probability"])), [each.toArray() for each in rows["probability"]], rtol=1e-5
    )


@pytest.mark.slow
def test_a_gang_and_the_same_again_for_more_epochs(data, store, tmp_path):
    model = classifier(store, tmp_path / "run").fit(data)
    check(store, tmp_path / "run", model, data, "epoch")
    assert [step for step, _ in curve(tmp_path / "run" / "tb" / "steps", "step/loss")]
    model = classifier(store, tmp_path / "run", epochs=4).fit(data)
    assert [row["epoch"] for row in model.history] == [1, 2, 3, 4]
    check(store, tmp_path / "run", model, data, "epoch")
    assert len(list((tmp_path / "run" / "tb").glob("events*"))) == 2
    assert len(runs(store)[1]) == 2


@pytest.mark.slow
def test_rounds_and_the_same_again_for_more_rounds(data, store, tmp_path):
    for rounds in (2, 3):
        strategy = ParallelSGD(rounds=rounds, shard_batch_size=10)
        model = classifier(store, tmp_path / "run", strategy=strategy).fit(data)
        assert [row["round"] for row in model.history] == list(range(1, rounds + 1))
        check(store, tmp_path / "run", model, data, "round")


def failing() -> torch.nn.Module:
    raise RuntimeError("no module today")


def test_a_fit_that_fails_is_a_run_that_failed(data, store, tmp_path):
    estimator = classifier(store, tmp_path / "run", model=failing, maxRestarts=0)
    with pytest.raises(WorkerFailed, match="no module today"):
        estimator.fit(data)
    _, (run,) = runs(store)
    assert run.info.status == "FAILED"
    assert "no module today" in run.data.tags["sparkdl.error"]


def test_a_fit_that_is_refused_leaves_no_trace(data, store, tmp_path):
    with pytest.raises(InvalidInput, match="TensorBoard has no folder, and the run no runDir"):
        TorchClassifier(model=nets.scores, inputCols=["x"], hooks=[MLflow("digits", store), TensorBoard()]).fit(data)
    with pytest.raises(InvalidInput, match="minWorkers is 5"):
        classifier(store, tmp_path / "run", minWorkers=5).fit(data)
    import mlflow

    assert mlflow.MlflowClient(store).get_experiment_by_name("digits") is None
    assert not (tmp_path / "run" / "tb").exists()
