"""A fit that loses workers ends like one that lost none, in the same call or in the next one."""

import json
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from sparkdl import EMA
from sparkdl.errors import InvalidInput, WorkerLost
from sparkdl.io.weights import pack
from sparkdl.ml.run import IDENTITY
from sparkdl.telemetry.event_reader import read_events
from tests.faults import Fault
from tests.ml import rows
from tests.ml.rows import ROWS, Steps
from tests.ml.test_fit_monitor import Diary
from tests.telemetry.test_chrome_trace import valid

# Three epochs of four steps.
regressor = partial(rows.regressor, optimizer=partial(torch.optim.Adam, lr=0.1), batchSize=ROWS // 4, epochs=3)


@pytest.fixture(scope="module")
def undisturbed(data):
    return regressor().fit(data)


def check_same(model, expected):
    assert pack(model.module()) == pack(expected.module())
    for row, other in zip(model.history, expected.history, strict=True):
        assert (row["step"], row["samples"], row["loss"]) == (other["step"], other["samples"], other["loss"])


@pytest.mark.chaos
@pytest.mark.cluster
def test_killed_worker_is_replaced_in_the_same_call(data, tmp_path, undisturbed):
    """And a call that ends with its worker is resumed by the next call."""
    run, diary, marks = tmp_path / "run", Diary(), [tmp_path / "one", tmp_path / "two"]
    fit = partial(regressor, runDir=str(run), checkpointInterval=2)  # step 6 is saved after step 4
    with pytest.raises(WorkerLost):
        fit(callbacks=[Fault("kill", 1, 7, str(marks[0]))], trackers=[diary], maxRestarts=0).fit(data)
    kind, error, model = diary.lines[-1]
    assert (kind, error.partition(":")[0], model) == ("end", "WorkerLost", None)
    assert [event.payload["error"] for event in read_events(run / "events") if event.kind == "end"] == [error]
    start = time.monotonic()
    model = fit(callbacks=[Fault("kill", 1, 10, str(marks[1]))], maxRestarts=1).fit(data)
    assert model.report["seconds"] > time.monotonic() - start  # those of the first call are more than the overhead
    assert all(mark.exists() for mark in marks)
    check_same(model, undisturbed)
    assert (model.report["restarts"], model.summary.restarts, model.report["workers"]) == (2, 2, [2, 2])
    assert json.loads((run / "report.json").read_text())["restarts"] == 2
    events = read_events(run / "events")
    attempts = [(event.attempt, event.payload["size"]) for event in events if event.kind == "attempt"]
    assert attempts == [(0, 2), (1, 2), (2, 2)]
    [cause] = [event.payload["cause"] for event in events if event.kind == "restart"]
    assert "WorkerLost" in cause
    for attempt, ranks in enumerate(({0}, {0}, {0, 1})):  # a killed worker may lose its last events
        assert ranks <= {event.rank for event in events if event.kind == "step" and event.attempt == attempt}
    assert {event.payload["epoch"] for event in events if event.kind == "epoch"} == {1, 2, 3}
    timeline = json.loads((run / "timeline.json").read_text())
    valid(timeline)
    assert [event["args"]["cause"] for event in timeline["traceEvents"] if event["name"] == "restart"]
    assert "WorkerLost" in Path(model.report.html()).read_text()


@pytest.mark.chaos
def test_without_a_directory_the_next_attempt_resumes(data, tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    fault, steps = Fault("fail", 1, 7, str(tmp_path / "mark")), Steps(str(tmp_path / "steps"))
    model = regressor(checkpointInterval=2, callbacks=[fault, steps]).fit(data)
    check_same(model, undisturbed)
    assert (model.report["restarts"], model.report["workers"]) == (1, [2, 2])
    assert [int(step) for step in (tmp_path / "steps").read_text().split()] == [*range(1, 8), *range(7, 13)]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_another_average_raises_and_that_of_an_earlier_version_resumes(data, tmp_path):
    settings = {"runDir": str(tmp_path), "epochs": 1}
    model, file = regressor(callbacks=[EMA(0.9)], **settings).fit(data), tmp_path / f"{IDENTITY}.json"
    with pytest.raises(InvalidInput, match=r"callbacks was '\[EMA\(decay=0.9\)\]' and is '\[EMA\(decay=0.5\)\]'"):
        regressor(callbacks=[EMA(0.5)], **settings).fit(data)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in whole.items() if name != "callbacks"}))
    with pytest.warns(UserWarning, match="an earlier version began this run"):
        check_same(regressor(callbacks=[EMA(0.9)], **settings).fit(data), model)
    assert json.loads(file.read_text()) == whole


def test_smaller_gangs(data, tmp_path):
    with pytest.warns(UserWarning, match="minWorkers=1 without checkpoints"):
        assert regressor(checkpointInterval="never", minWorkers=1, epochs=1).fit(data).report["restarts"] == 0
    elastic = regressor(numWorkers=3, minWorkers=1, runDir=str(tmp_path), checkpointInterval="1 epoch", epochs=1)
    with pytest.warns(UserWarning, match="gang of 3 .* 2"):  # no waiting for slots that never come
        assert elastic.fit(data).report["workers"] == [2]
