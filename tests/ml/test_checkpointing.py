"""A fit that loses members ends, in the same call or in the next one, as a fit that lost none."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from sparkdl import TorchRegressor
from sparkdl.errors import InvalidInput, WorkerLost
from sparkdl.io.weights import pack
from tests.faults import Fault
from tests.ml import nets
from tests.sessions import frame

ROWS = 60
X = np.random.default_rng(5).normal(size=(ROWS, 3))
ARRAYS = {"row": np.arange(ROWS), "x": X, "y": X @ [1.0, -2.0, 0.5]}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).cache()


def regressor(**given):
    """Three epochs of four steps."""
    defaults = {
        "model": nets.column,
        "optimizer": partial(torch.optim.Adam, lr=0.1),
        "inputCols": ["x"],
        "labelCol": "y",
        "numWorkers": 2,
        "batchSize": 15,
        "epochs": 3,
        "idCol": "row",
    }
    return TorchRegressor(**defaults | given)


@dataclass(frozen=True)
class Steps:
    """A hook that writes down the steps that are taken, of all attempts."""

    path: str

    def on_step(self, run):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{run.clock.step}\n")


@pytest.fixture(scope="module")
def undisturbed(data):
    return regressor().fit(data)


def assert_alike(model, expected):
    assert pack(model.module()) == pack(expected.module())
    for row, other in zip(model.history, expected.history, strict=True):
        assert (row["step"], row["samples"], row["loss"]) == (other["step"], other["samples"], other["loss"])


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_replaced_in_the_same_call(data, tmp_path, undisturbed, rank):
    fault = Fault("kill", rank, 7, str(tmp_path / "mark"))
    model = regressor(runDir=str(tmp_path / "run"), checkpointInterval=2, maxRestarts=1, hooks=[fault]).fit(data)
    assert (tmp_path / "mark").exists()
    assert_alike(model, undisturbed)
    assert (model.report["restarts"], model.report["workers"]) == (1, [2, 2])
    assert json.loads((tmp_path / "run" / "report.json").read_text())["restarts"] == 1


@pytest.mark.chaos
@pytest.mark.cluster
def test_the_same_fit_again_goes_on_and_another_one_is_refused(data, tmp_path, undisturbed):
    run = str(tmp_path / "run")
    fault = Fault("kill", 1, 7, str(tmp_path / "mark"))
    with pytest.raises(WorkerLost):
        regressor(runDir=run, checkpointInterval="1 epoch", hooks=[fault], maxRestarts=0).fit(data)
    assert_alike(regressor(runDir=run, checkpointInterval="1 epoch").fit(data), undisturbed)
    config = (tmp_path / "run" / "config.json").read_text()
    for name, value in {"batchSize": 20, "loss": lambda output, target: (output - target).abs()}.items():
        with pytest.raises(
            InvalidInput, match=rf"belongs to the run .* Take another runDir.* These differ: {name} was"
        ):
            regressor(runDir=run, checkpointInterval="1 epoch", **{name: value}).fit(data)
    assert (tmp_path / "run" / "config.json").read_text() == config


@pytest.mark.chaos
def test_without_a_directory_the_next_attempt_goes_on_and_nothing_stays(data, tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    fault, steps = Fault("fail", 1, 7, str(tmp_path / "mark")), Steps(str(tmp_path / "steps"))
    model = regressor(checkpointInterval=2, hooks=[fault, steps]).fit(data)
    assert_alike(model, undisturbed)
    assert model.report["restarts"] == 1
    assert [int(step) for step in (tmp_path / "steps").read_text().split()] == [*range(1, 8), *range(7, 13)]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_without_checkpoints_fewer_members_begin_anew(data):
    with pytest.warns(UserWarning, match=r"minWorkers is 1, but without checkpoints .* stays as small as it is"):
        assert regressor(checkpointInterval="never", minWorkers=1, epochs=1).fit(data).report["restarts"] == 0


def test_an_error_of_one_member_is_tried_a_second_time(data, tmp_path):
    fault = Fault("fail", 1, 2, str(tmp_path / "mark"))
    report = regressor(epochs=1, hooks=[fault]).fit(data).report
    assert (report["restarts"], report["workers"]) == (1, [2, 2])


# ---- fewer members ---------------------------------------------------------------------------------------------------


def test_more_workers_that_there_are_never_slots_for_are_not_waited_for(data, tmp_path):
    elastic = regressor(numWorkers=3, minWorkers=1, runDir=str(tmp_path), checkpointInterval="1 epoch", epochs=1)
    with pytest.warns(UserWarning, match="the configuration allows 2 workers at a time, so the gang of 3 has 2"):
        assert elastic.fit(data).report["workers"] == [2]


def test_more_workers_at_least_than_at_all(data, tmp_path):
    with pytest.raises(InvalidInput, match="minWorkers is 3; expected at most numWorkers, which is 2"):
        regressor(minWorkers=3, runDir=str(tmp_path / "run")).fit(data)
    assert not (tmp_path / "run").exists()
