"""Events of members, and the files of a run's directory."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from pyspark.ml.regression import LinearRegression

from sparkdl import Bagging, TorchRegressor
from sparkdl.errors import InvalidInput
from sparkdl.ml.report import Report
from sparkdl.telemetry.event_reader import read_events
from tests.ml import nets


def bagging(folder: Path | None, **given) -> Bagging:
    optimizer = partial(torch.optim.SGD, lr=0.05)
    base = TorchRegressor(model=nets.column, optimizer=optimizer, inputCols=["x"], batchSize=8, epochs=2)
    directory = None if folder is None else str(folder)
    return Bagging(**{"base": base, "numModels": 3, "idCol": "row", "runDir": directory, "seed": 2} | given)


def ends(folder: Path) -> list[dict]:
    return [event.payload for event in read_events(folder / "events") if event.kind == "member"]


def test_members_in_tasks_emit_epochs_and_ends(data, tmp_path):
    fitted = bagging(tmp_path).fit(data)
    events = read_events(tmp_path / "events")
    for index in range(3):
        own = [event for event in events if event.rank == index]
        assert [event.payload["epoch"] for event in own if event.kind == "epoch"] == [1, 2]
        assert {"step", "span", "progress", "member"} <= {event.kind for event in own}
    told = [{"member": index, "seconds": row["seconds"]} for index, row in enumerate(fitted.history)]
    assert sorted(ends(tmp_path), key=lambda each: each["member"]) == told
    assert [event.payload for event in events if event.kind == "members"] == [{"count": 3}]
    assert [event.kind for event in events if event.kind in ("begin", "end")] == ["begin", "end"]
    assert isinstance(fitted.report, Report)
    assert json.loads((tmp_path / "history.json").read_text()) == fitted.history
    assert json.loads((tmp_path / "report.json").read_text()) == fitted.report
    assert json.loads((tmp_path / "config.json").read_text())["numModels"] == 3
    assert Path(fitted.report.html()).exists()
    bagging(tmp_path, numModels=4).fit(data)
    assert [each["member"] for each in ends(tmp_path) if each.get("restored")] == [0, 1, 2]
    assert sorted(each["member"] for each in ends(tmp_path) if not each.get("restored")) == [0, 1, 2, 3]


@pytest.mark.slow
def test_members_of_the_driver_emit_ends_and_an_invalid_fit_nothing(data, tmp_path):
    fitted = bagging(tmp_path, base=LinearRegression(), numModels=2).fit(data)
    assert {each["member"]: each["seconds"] for each in ends(tmp_path)} == {
        row["member"]: row["seconds"] for row in fitted.history
    }
    before = sorted((tmp_path / "events").iterdir())
    with pytest.raises(InvalidInput, match="another ensemble"):
        bagging(tmp_path, seed=9).fit(data)
    assert sorted((tmp_path / "events").iterdir()) == before


@pytest.mark.slow
def test_fit_without_a_directory_has_a_report(data, capsys):
    assert bagging(None).fit(data).report["events_dropped"] == 0
    assert "3/3" in capsys.readouterr().err
