"""What is seen of fits on real executors: events, report, timeline, logs, hooks on the driver, Spark's UI."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl import ParallelSGD, TorchClassifier
from sparkdl.errors import InvalidInput, SparkdlError
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event_reader import read_events
from tests.faults import Fault
from tests.listening import unreachable
from tests.ml import nets
from tests.sessions import frame
from tests.telemetry.test_chrome_trace import valid

pytestmark = pytest.mark.cluster

ROWS = 120
DRAW = np.random.default_rng(6)
X = DRAW.normal(size=(ROWS, 3))
ARRAYS = {
    "row": np.arange(ROWS),
    "x": X,
    "label": (X @ [1.0, 1.0, -1.0] > 0).astype(np.float64),
    "held": np.arange(ROWS) % 4 == 0,
}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).cache()


def classifier(**given: Any) -> TorchClassifier:
    defaults = {"model": nets.scores, "optimizer": partial(torch.optim.SGD, lr=0.2), "inputCols": ["x"], "seed": 1}
    return TorchClassifier(**defaults | {"numWorkers": 2, "batchSize": 16, "epochs": 3, "idCol": "row"} | given)


class Slow(nn.Module):
    """As ``nets.scores``, but slow on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nets.scores()

    def forward(self, x: torch.Tensor) -> Any:
        if os.environ.get("RANK") == "1":
            time.sleep(0.02)
        return self.scores(x)


class Talks:
    """Prints and logs on every rank."""

    every_rank = True

    def on_epoch(self, run: Any) -> None:
        print(f"printed by {run.rank} after {run.clock.epoch}")
        logging.getLogger("app").warning("logged by %d after %d", run.rank, run.clock.epoch)


class Fails:
    def on_epoch(self, run: Any) -> None:
        raise LookupError("no more")


class Diary:
    on_driver = True

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def __reduce__(self) -> Any:
        raise TypeError("it stays on the driver")

    def on_start(self, run: Any) -> None:
        self.lines.append(("start", run.configuration["class"]))

    def on_epoch(self, run: Any) -> None:
        self.lines.append(("epoch", run.history[-1]))

    def on_end(self, run: Any) -> None:
        self.lines.append(("end", run.error, run.model))


# ---- gangs -----------------------------------------------------------------------------------------------------------


def test_events_give_the_numbers_that_the_history_holds(data, tmp_path):
    fitted = classifier(validationIndicatorCol="held", runDir=str(tmp_path)).fit(data)
    events = read_events(tmp_path / "events")
    assert [event.payload for event in events if event.kind == "epoch"] == fitted.history
    steps = {rank: [each.payload for each in events if (each.kind, each.rank) == ("step", rank)] for rank in (0, 1)}
    for rank, told in steps.items():
        assert sum(each["steps"] for each in told) == fitted.history[-1]["step"]
        for phase, seconds in fitted.report["phases_by_rank"][rank].items():
            assert seconds == pytest.approx(sum(each["seconds"].get(phase, 0.0) for each in told), abs=1e-4)
    assert sum(each["rows"] for told in steps.values() for each in told) == fitted.history[-1]["samples"]
    assert sum(each["bytes"] for told in steps.values() for each in told) == fitted.report["bytes"]
    assert fitted.report["events"] == len(events)
    assert fitted.report["events_dropped"] == 0
    assert {"begin", "attempt", "started", "span", "progress", "finished", "outcome", "end"} <= {e.kind for e in events}
    made = json.loads((tmp_path / "timeline.json").read_text())
    valid(made)
    assert {1, 2} <= {each["pid"] for each in made["traceEvents"] if each["ph"] == "X"}
    assert json.loads((tmp_path / "report.json").read_text()) == fitted.report
    assert Path(fitted.report.html()).read_text().count("rank 1") > 0


def test_a_member_that_was_slowed_on_purpose_is_named(data):
    report = classifier(model=Slow, epochs=2).fit(data).report
    assert report["slowest_rank"] == 1
    assert report["skew_by_rank"][1] > 1.2
    assert "Rank 1 on" in report["verdict"]
    assert "most of it in forward" in report["verdict"]
    assert "Exchange-bound" not in report["verdict"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, ParallelSGD(rounds=3, shard_batch_size=8)], ids=["gang", "rounds"])
def test_a_driver_that_cannot_be_reached_costs_no_event(data, tmp_path, monkeypatch, strategy):
    monkeypatch.setattr(SparkCluster, "_channel", unreachable)
    fitted = classifier(**({} if strategy is None else {"strategy": strategy}), runDir=str(tmp_path)).fit(data)
    assert len(fitted.history) == 3
    assert fitted.report["events_dropped"] == 0
    events = read_events(tmp_path / "events")
    assert all(event.received is None for event in events if event.rank >= 0 and event.kind != "outcome")
    for rank in (0, 1):
        told = [event.payload for event in events if (event.kind, event.rank) == ("step", rank)]
        assert sum(each["rows"] for each in told) > 0
    if strategy is None:
        assert [event.payload for event in events if event.kind == "epoch"] == fitted.history
    valid(json.loads((tmp_path / "timeline.json").read_text()))


@pytest.mark.slow
def test_without_events_nothing_is_kept_and_nothing_measured(data, tmp_path, capsys):
    fitted = classifier(telemetry=False, runDir=str(tmp_path)).fit(data)
    assert not (tmp_path / "events").exists()
    assert not (tmp_path / "timeline.json").exists()
    assert "phases" not in fitted.report
    assert "epoch 1" not in capsys.readouterr().err


def test_members_lines_are_shown_with_their_rank(data, capsys):
    classifier(epochs=1, hooks=[Talks()], logLevel="info").fit(data)
    told = capsys.readouterr().err
    for rank in (0, 1):
        assert f"[rank {rank}, {socket.gethostname()}] printed by {rank} after 1" in told
        assert f"[rank {rank}, {socket.gethostname()}] WARNING app: logged by {rank} after 1" in told


@pytest.mark.slow
def test_by_default_warnings_alone_are_shown(data, capsys):
    classifier(epochs=1, hooks=[Talks()]).fit(data)
    told = capsys.readouterr().err
    assert "WARNING app: logged by 1 after 1" in told
    assert "] printed by" not in told


@pytest.mark.slow
def test_hooks_on_the_driver_see_rows_and_the_model(data, tmp_path):
    diary = Diary()
    fitted = classifier(hooks=[diary], runDir=str(tmp_path)).fit(data)
    assert diary.lines == [
        ("start", "TorchClassifier"),
        *(("epoch", row) for row in fitted.history),
        ("end", None, fitted),
    ]


@pytest.mark.slow
def test_a_fit_that_fails_says_why_to_hooks_and_in_its_events(data, tmp_path):
    diary = Diary()
    with pytest.raises(SparkdlError, match="no more"):
        classifier(hooks=[diary, Fails()], maxRestarts=0, runDir=str(tmp_path)).fit(data)
    kind, error, model = diary.lines[-1]
    assert (kind, model) == ("end", None)
    assert "LookupError: no more" in error
    ends = [event for event in read_events(tmp_path / "events") if event.kind == "end"]
    assert [event.payload["error"] for event in ends] == [error]


@pytest.mark.slow
def test_a_run_that_is_refused_leaves_the_other_one_s_events_alone(data, tmp_path):
    classifier(runDir=str(tmp_path)).fit(data)
    before = sorted((tmp_path / "events").iterdir())
    with pytest.raises(InvalidInput):
        classifier(runDir=str(tmp_path), batchSize=8).fit(data)
    assert sorted((tmp_path / "events").iterdir()) == before


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_events_of_both(data, tmp_path):
    classifier(runDir=str(tmp_path), epochs=1).fit(data)
    fitted = classifier(runDir=str(tmp_path), epochs=2).fit(data)
    rows = [event.payload for event in read_events(tmp_path / "events") if event.kind == "epoch"]
    assert rows == fitted.history
    assert len(rows) == 2


# ---- rounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_of_rounds_tell_of_their_steps(data, tmp_path):
    diary = Diary()
    strategy = ParallelSGD(rounds=2, epochs=2, shard_batch_size=8)
    fitted = classifier(strategy=strategy, hooks=[diary], runDir=str(tmp_path)).fit(data)
    events = read_events(tmp_path / "events")
    for part in (0, 1):
        spans = [event.payload for event in events if (event.kind, event.rank) == ("span", part)]
        assert [span["round"] for span in spans if span["name"] == "round"] == [1, 2]
        told = [event.payload for event in events if (event.kind, event.rank) == ("step", part)]
        assert sum(each["rows"] for each in told) == 2 * 2 * fitted.report["rows_by_part"][part]
        assert {"forward", "backward", "update"} <= {phase for each in told for phase in each["seconds"]}
    assert [event.payload["round"] for event in events if event.kind == "round"] == [1, 2]
    assert [line[0] for line in diary.lines] == ["start", "epoch", "epoch", "end"]
    assert "begin" in {event.kind for event in events}


# ---- Spark's UI ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_jobs_are_called_by_run_attempt_and_round(spark, data, tmp_path):
    def descriptions() -> list[str]:
        jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        told = [jobs.apply(index).description() for index in range(jobs.size())]
        return [each.get() for each in told if each.isDefined()]

    spark.sparkContext.setJobDescription("mine")
    try:
        classifier(epochs=1, runDir=str(tmp_path / "one")).fit(data)
        strategy = ParallelSGD(rounds=2, shard_batch_size=8)
        classifier(strategy=strategy, runDir=str(tmp_path / "two")).fit(data)
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    finally:
        spark.sparkContext.setJobDescription(None)
    found = descriptions()
    assert "TorchClassifier one, attempt 0: 2 members, epochs 1 to 1" in found
    for number in (1, 2):
        assert f"TorchClassifier two: round {number}, Round" in found


# ---- what was lost -------------------------------------------------------------------------------------------------


@pytest.mark.chaos
def test_a_killed_member_is_seen_in_events_timeline_and_page(data, tmp_path):
    fault, run = Fault("kill", 1, 10, str(tmp_path / "mark")), tmp_path / "run"
    fitted = classifier(runDir=str(run), checkpointInterval=2, hooks=[fault]).fit(data)
    assert fitted.report["restarts"] == 1
    events = read_events(run / "events")
    told = [(event.attempt, event.payload["size"]) for event in events if event.kind == "attempt"]
    assert told == [(0, 2), (1, 2)]
    [restart] = [event for event in events if event.kind == "restart"]
    assert "WorkerLost" in restart.payload["cause"]
    for attempt in (0, 1):
        assert {event.rank for event in events if event.kind == "step" and event.attempt == attempt} == {0, 1}
    rows = [event.payload["epoch"] for event in events if event.kind == "epoch"]
    assert [row["epoch"] for row in fitted.history] == sorted({*rows})
    made = json.loads((run / "timeline.json").read_text())
    valid(made)
    assert [each["args"]["cause"] for each in made["traceEvents"] if each["name"] == "restart"]
    page = Path(fitted.report.html()).read_text()
    assert "WorkerLost" in page
    assert "Workers of each attempt" not in page  # both attempts had two
