"""What is seen of ensembles: events of members, and what the run's directory has in the end."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import LinearRegression

from sparkdl import Bagging, TorchRegressor
from sparkdl.errors import InvalidInput
from sparkdl.ml.report import Report
from sparkdl.telemetry.event_reader import read_events
from tests.ml import nets
from tests.sessions import frame

DRAW = np.random.default_rng(4)
X = DRAW.normal(size=(60, 3))
ARRAYS = {"row": np.arange(60), "x": X, "label": X @ [1.0, -2.0, 0.5]}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).cache()


def bagging(folder: Path, **given) -> Bagging:
    optimizer = partial(torch.optim.SGD, lr=0.05)
    base = TorchRegressor(model=nets.column, optimizer=optimizer, inputCols=["x"], batchSize=8, epochs=2)
    return Bagging(**{"base": base, "numModels": 3, "idCol": "row", "runDir": str(folder), "seed": 2} | given)


def test_members_in_tasks_tell_of_their_epochs_and_of_their_end(data, tmp_path):
    fitted = bagging(tmp_path).fit(data)
    events = read_events(tmp_path / "events")
    for index, row in enumerate(fitted.history):
        own = [event for event in events if event.rank == index]
        assert [event.payload["epoch"] for event in own if event.kind == "epoch"] == [1, 2]
        assert {"step", "span", "progress"} <= {event.kind for event in own}
        [told] = [event.payload for event in own if event.kind == "member"]
        assert told == {"member": index, "seconds": row["seconds"]}
    assert [event.payload for event in events if event.kind == "members"] == [{"count": 3}]
    assert [event.kind for event in events if event.kind in ("begin", "end")] == ["begin", "end"]
    assert isinstance(fitted.report, Report)
    assert json.loads((tmp_path / "history.json").read_text()) == fitted.history
    assert json.loads((tmp_path / "report.json").read_text()) == fitted.report
    assert json.loads((tmp_path / "config.json").read_text())["numModels"] == 3
    assert Path(fitted.report.html()).exists()


@pytest.mark.slow
def test_members_that_are_restored_say_so(data, tmp_path):
    bagging(tmp_path).fit(data)
    bagging(tmp_path, numModels=4).fit(data)
    told = [event.payload for event in read_events(tmp_path / "events") if event.kind == "member"]
    assert [each["member"] for each in told if each.get("restored")] == [0, 1, 2]
    assert sorted(each["member"] for each in told if not each.get("restored")) == [0, 1, 2, 3]


@pytest.mark.slow
def test_members_that_the_driver_fits_tell_of_their_end(data, tmp_path):
    vectors = data.withColumn("features", array_to_vector("x"))
    fitted = bagging(tmp_path, base=LinearRegression(), numModels=2).fit(vectors)
    told = {e.payload["member"]: e.payload["seconds"] for e in read_events(tmp_path / "events") if e.kind == "member"}
    assert told == {row["member"]: row["seconds"] for row in fitted.history}


@pytest.mark.slow
def test_an_ensemble_that_is_refused_leaves_no_trace(data, tmp_path):
    bagging(tmp_path).fit(data)
    before = sorted((tmp_path / "events").iterdir())
    with pytest.raises(InvalidInput, match="another ensemble"):
        bagging(tmp_path, seed=9).fit(data)
    assert sorted((tmp_path / "events").iterdir()) == before


@pytest.mark.slow
def test_without_a_directory_there_is_a_report_all_the_same(data, tmp_path, capsys):
    fitted = bagging(tmp_path, runDir=None).fit(data)
    assert fitted.report["events_dropped"] == 0
    assert "3/3" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
