"""Both trackers with real fits on Spark."""

from __future__ import annotations

import json

import mlflow
import numpy as np
import pytest
import torch

from sparkdl import MLflow, TensorBoard
from sparkdl.errors import InvalidInput, WorkerFailed
from tests.ml import rows
from tests.ml.tracking.fake_run import runs
from tests.ml.tracking.test_tensorboard import curve


def classifier(store, folder, **changes):
    trackers = [TensorBoard(), MLflow("digits", store)]
    given = {"trackers": trackers, "batchSize": 30, "validationIndicatorCol": "valid", "runDir": str(folder)}
    return rows.classifier(**given | changes)


@pytest.mark.slow
def test_fit_and_resumed_fit(data, store, tmp_path):
    for count in (2, 3):
        model = classifier(store, tmp_path, epochs=count).fit(data)
        steps, valid = [row["epoch"] for row in model.history], [row["valid_loss"] for row in model.history]
        assert steps == list(range(1, count + 1))
        points = curve(tmp_path / "tb", "valid/loss")
        assert [step for step, _ in points] == steps
        np.testing.assert_allclose([value for _, value in points], valid, rtol=1e-6)
        client, run = mlflow.MlflowClient(store), runs(store)[-1]
        logged = client.get_metric_history(run.info.run_id, "valid_loss")
        assert [(metric.step, metric.value) for metric in logged] == list(zip(steps, valid, strict=True))
        assert (run.info.status, json.loads(run.data.params["inputCols"])) == ("FINISHED", ["x"])
    assert curve(tmp_path / "tb" / "steps", "step/loss")
    assert len(list((tmp_path / "tb").glob("events*"))) == len(runs(store)) == 2
    assert len(run.outputs.model_outputs) == 1


def failing() -> torch.nn.Module:
    raise RuntimeError("no module today")


def test_failed_fits(data, store, tmp_path):
    with pytest.raises(InvalidInput, match="minWorkers is 5"):
        classifier(store, tmp_path / "run", minWorkers=5).fit(data)
    assert mlflow.MlflowClient(store).get_experiment_by_name("digits") is None
    assert not (tmp_path / "run" / "tb").exists()
    with pytest.raises(WorkerFailed, match="no module today"):
        classifier(store, tmp_path / "run", maxRestarts=0).setModel(failing).fit(data)
    (run,) = runs(store)
    assert (run.info.status, "no module today" in run.data.tags["sparkdl.error"]) == ("FAILED", True)
