"""The command that searches hyperparameters: its configuration, and a search that continues."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from sparkdl import Range, SuccessiveHalving, TorchTuner
from sparkdl.cli import commands
from tests.sessions import ROOT, frame

NET = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}}
ESTIMATOR = {
    "class_path": "sparkdl.TorchClassifier",
    "init_args": {"model": NET, "epochs": 2, "batchSize": 20, "validationFraction": 0.3},
}


def test_configuration_of_the_repository_parses_without_spark(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    file = ROOT / "conf/tune/adult.yaml"
    with pytest.raises(SystemExit) as ended:
        commands.run("tune", ["--config", str(file), "--print_config"])
    assert ended.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)["tuner"]
    printed = printed.get("init_args", printed)
    written = yaml.safe_load(file.read_text())["tuner"]
    assert printed["paramSpace"] == written["paramSpace"]


def test_values_of_a_configuration_keep_their_types(read, tmp_path):
    space = {"learningRate": {"low": 1e-4, "high": 0.1, "log": True}, "batchSize": [64, 256]}
    settings = {"paramSpace": space, "numTrials": 7, "earlyTermination": {"reduction_factor": 2}, "sampler": "gp"}
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump({"data": {"path": "x"}, "tuner": {"estimator": ESTIMATOR, **settings}}))
    tuner = read(file, "--tuner.estimator.epochs", 5, job="tune").tuner
    assert type(tuner) is TorchTuner
    assert (tuner.getNumTrials(), tuner.getSampler(), tuner.getEstimator().getEpochs()) == (7, "gp", 5)
    assert tuner.getEarlyTermination() == SuccessiveHalving(2)
    assert tuner.getParamSpace() == space
    assert Range(**space["learningRate"]).log


@pytest.mark.cluster
@pytest.mark.slow
def test_a_search_by_its_configuration_continues_with_more_trials(spark, job, tmp_path):
    x = np.random.default_rng(0).normal(size=(80, 2))
    frame({"features": x, "label": (x[:, 0] > 0).astype(float)}).write.parquet(str(tmp_path / "rows"))
    tuner = {"estimator": ESTIMATOR, "paramSpace": {"learningRate": [0.001, 0.01, 0.1, 1.0]}, "sampler": "random"}
    tuner |= {"numTrials": 2, "runDir": str(tmp_path / "run"), "earlyTermination": None}
    rows = {"path": str(tmp_path / "rows")}
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump({"data": rows, "test": rows, "tuner": tuner, "output": str(tmp_path / "model")}))
    code, printed = job("tune", "--config", file)
    assert (code, "best trial" in printed, "held-out accuracy" in printed) == (0, True, True), printed
    code, printed = job("tune", "--config", file, "--tuner.numTrials", 4, "--overwrite", "true")
    assert code == 0, printed
    trials = [json.loads(path.read_text()) for path in sorted((tmp_path / "run/trials").glob("*.json"))]
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    assert sorted(trial["params"]["learningRate"] for trial in trials) == [0, 1, 2, 3]
