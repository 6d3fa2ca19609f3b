"""The commands with SPARK_REMOTE, on the session of this process."""

from __future__ import annotations

from typing import Any

import yaml

from sparkdl.cli.commands import run
from tests.connect.fits import rows


def test_train_and_predict(server: Any, spark: Any, tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("SPARK_REMOTE", server.url)
    monkeypatch.setattr(type(spark), "stop", lambda *_: None)  # the session outlives the commands
    data, model, predictions = (str(tmp_path / name) for name in ("data", "model", "predictions"))
    rows(spark).write.parquet(data)
    inputs = {"inputCols": ["x0", "x1", "x2", "x3"], "assembleInputs": True, "labelCol": "label"}
    settings = {"model": {"class_path": "tests.connect.fits.Plane"}, "numWorkers": 2, "epochs": 9, "batchSize": 32}
    estimator = {"class_path": "sparkdl.TorchClassifier", "init_args": inputs | settings}
    configuration = tmp_path / "train.yaml"
    configuration.write_text(yaml.safe_dump({"data": {"path": data}, "estimator": estimator, "output": model}))
    assert run("train", ["--config", str(configuration)]) == 0, capsys.readouterr().err
    arguments = ["--model", model, "--data.path", data, "--output", predictions, "--label", "label"]
    assert run("predict", arguments) == 0
    printed = capsys.readouterr().out
    assert f"wrote {predictions}" in printed
    assert "accuracy" in printed
    assert spark.read.parquet(predictions).count() == rows(spark).count()
