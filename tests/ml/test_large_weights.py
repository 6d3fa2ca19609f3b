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
from tests.sessions import IN_PROCESS, drive, frame, session

WIDTH = 700_000  # 17 MB of weights


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def scores(model: TorchModel, rows: Any) -> str:
    column = np.array([row.prediction for row in model.transform(rows).orderBy("id").collect()])
    return hashlib.sha256(column.tobytes()).hexdigest()


def inputs() -> tuple[Any, Any, TorchRegressor]:
    """Numbers, the rows with them, and an estimator."""
    numbers = np.random.default_rng(0).random((40, 4), np.float32)
    rows = frame({"features": numbers, "label": numbers[:, 0], "id": np.arange(40)}).persist()
    options: dict[str, Any] = {"model": wide, "numWorkers": 2, "batchSize": 20, "epochs": 2, "idCol": "id"}
    estimator = TorchRegressor(optimizer=partial(torch.optim.SGD, lr=1e-6), validationFraction=0.2, **options)
    return numbers, rows, estimator


def limited(folder: str) -> dict[str, Any]:
    """In a driver that accepts small results: fit without a directory and with one, save, load and score."""
    with session(folder, IN_PROCESS, driver__maxResultSize="4m"):
        numbers, rows, estimator = inputs()
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
def test_fit_beyond_the_limit_of_results_has_the_bits_of_one_without(spark: Any, tmp_path: Path) -> None:
    found = drive(limited, tmp_path).result
    _, rows, estimator = inputs()
    model = estimator.fit(rows)
    rows.unpersist()
    expected = hashlib.sha256(model._trained.weights).hexdigest(), *2 * [scores(model, rows)]
    assert (found["weights"], found["scores"], found["loaded"]) == expected
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
