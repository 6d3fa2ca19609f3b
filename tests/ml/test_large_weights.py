"""Weights that the driver does not accept as a result travel in files of the run's directory."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl import TorchModel, TorchRegressor, load_predictor
from sparkdl.errors import InvalidInput
from sparkdl.io.weights_file import WeightsFile
from tests.sessions import drive, frame, session

WIDTH = 700_000  # 17 MB of weights


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def scores(model: TorchModel, rows: Any) -> str:
    column = np.array([row.prediction for row in model.transform(rows).orderBy("id").collect()])
    return hashlib.sha256(column.tobytes()).hexdigest()


def fit(folder: str, limit: str) -> dict[str, Any]:
    """Fit on two executors; with a limit, also without a directory, and save, load and score."""
    numbers = np.random.default_rng(0).random((40, 4), np.float32)
    with session(folder, driver__maxResultSize=limit):
        rows = frame({"features": numbers, "label": numbers[:, 0], "id": np.arange(40)}).persist()
        options: dict[str, Any] = {"model": wide, "numWorkers": 2, "batchSize": 20, "epochs": 2, "idCol": "id"}
        estimator = TorchRegressor(optimizer=partial(torch.optim.SGD, lr=1e-6), validationFraction=0.2, **options)
        if limit == "0":
            model = estimator.fit(rows)
            return {"scores": scores(model, rows), "weights": hashlib.sha256(model._trained.weights).hexdigest()}
        try:
            estimator.fit(rows)
        except InvalidInput as error:
            refused = [error.message, error.attempt]
        run, saved = Path(folder, "run"), str(Path(folder, "saved"))
        model = estimator.setRunDir(str(run)).fit(rows)
        weights = model._trained.weights
        assert isinstance(weights, WeightsFile)
        files = sorted(path.name for path in run.iterdir() if path.name.startswith(("weights", "parts")))
        again = estimator.fit(rows)._trained.weights
        model.write().overwrite().save(saved)
        found = {"scores": scores(model, rows), "weights": weights.sha256, "refused": refused, "files": files}
        shutil.rmtree(run)
        loaded = TorchModel.load(saved)
        predicted = load_predictor(saved, modules=["tests"]).predict(numbers)["prediction"].to_numpy()
        exact = np.array_equal(predicted, loaded.predict(numbers)["prediction"].to_numpy())
        try:
            model.module()
        except InvalidInput as error:
            gone = error.message
        return found | {"loaded": scores(loaded, rows), "again": again == weights, "gone": gone, "alone": exact}


@pytest.mark.slow
@pytest.mark.timeout(400)  # two drivers
def test_fit_beyond_the_limit_of_results_has_the_bits_of_one_without(tmp_path: Path) -> None:
    for name in ("limited", "unlimited"):
        (tmp_path / name).mkdir()
    found = drive(fit, tmp_path / "limited", "4m").result
    expected = drive(fit, tmp_path / "unlimited", "0").result
    assert (found["weights"], found["scores"], found["loaded"]) == (expected["weights"], *2 * [expected["scores"]])
    assert (found["again"], found["alone"]) == (True, True)
    [name] = found["files"]
    assert name.startswith("weights-")
    assert name.endswith(".safetensors")
    message, attempt = found["refused"]
    assert message.startswith(
        "the weights of Sequential have 16.8 MB, and the driver accepts results of 4.1943 MB. Set run"
    )
    assert attempt is None
    assert "the model's weights are gone, or hosts do not share its folder. Save a model" in found["gone"]
