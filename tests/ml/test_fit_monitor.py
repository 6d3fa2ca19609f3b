"""Events, report, timeline, logs, trackers and job descriptions of fits on Spark."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl import InvalidInput, ParallelSGD
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event_reader import read_events
from tests.listening import unreachable
from tests.ml import rows
from tests.ml.rows import ROWS
from tests.telemetry.test_chrome_trace import valid

pytestmark = pytest.mark.cluster

classifier = partial(rows.classifier, seed=1, batchSize=16, epochs=3)
WRITTEN = ("config.json", "history.json", "report.json", "timeline.json", "report.html")


class Slow(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        if os.environ.get("RANK") == "1":
            time.sleep(0.02)
        return super().forward(x)


class Talks:
    def on_epoch(self, run: Any) -> None:
        print(f"printed by {run.rank} after {run.clock.epoch}")
        logging.getLogger("app").warning("logged by %d after %d", run.rank, run.clock.epoch)


class Diary:
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def __reduce__(self) -> Any:
        raise TypeError("trackers stay on the driver")

    def on_start(self, run: Any) -> None:
        self.lines.append(("start", run.configuration["class"]))

    def on_epoch(self, run: Any) -> None:
        self.lines.append(("epoch", run.history[-1]))

    def on_end(self, run: Any) -> None:
        self.lines.append(("end", run.error, run.model))


def payloads(events: list[Any], kind: str, rank: int | None = None) -> list[dict[str, Any]]:
    return [event.payload for event in events if event.kind == kind and rank in (None, event.rank)]


def jobs(spark: Any) -> list[str]:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    descriptions = [jobs.apply(index).description() for index in range(jobs.size())]
    return [description.get() for description in descriptions if description.isDefined()]


def test_events_of_a_gang(spark, data, tmp_path, capsys):
    diary, run = Diary(), tmp_path / "one"
    settings = {"validationIndicatorCol": "valid", "runDir": str(run), "logLevel": "info"}
    spark.sparkContext.setJobDescription("mine")
    try:
        fitted = classifier(**settings, trackers=[diary], callbacks=[Talks()]).fit(data)
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    finally:
        spark.sparkContext.setJobDescription(None)
    assert any(job.startswith("TorchClassifier one, attempt 0: 2 ") for job in jobs(spark))
    events = read_events(run / "events")
    assert payloads(events, "epoch") == fitted.history
    steps = [payloads(events, "step", rank) for rank in (0, 1)]
    for of_rank, phases in zip(steps, fitted.report["phases_by_rank"], strict=True):
        assert sum(step["steps"] for step in of_rank) == fitted.history[-1]["step"]
        for phase, seconds in phases.items():
            assert seconds == pytest.approx(sum(step["seconds"].get(phase, 0.0) for step in of_rank), abs=1e-4)
    assert sum(step["rows"] for step in steps[0] + steps[1]) == fitted.history[-1]["samples"]
    assert sum(step["bytes"] for step in steps[0] + steps[1]) == fitted.report["bytes"]
    assert (fitted.report["events"], fitted.report["events_dropped"]) == (len(events), 0)
    assert {"begin", "attempt", "started", "span", "progress", "finished", "outcome", "end"} <= {e.kind for e in events}
    timeline = json.loads((run / "timeline.json").read_text())
    valid(timeline)
    for rank in (0, 1):
        names = {entry["name"] for entry in timeline["traceEvents"] if (entry["pid"], entry["ph"]) == (rank + 1, "X")}
        assert {"feed", "forward", "backward", "exchange", "update", "join", "work"} <= names
    hosts = {entry["args"]["name"] for entry in timeline["traceEvents"] if entry["name"] == "process_name"}
    assert {host.partition(" (")[0] for host in hosts} == {"driver", "rank 0", "rank 1"}
    assert json.loads((run / "report.json").read_text()) == fitted.report
    assert Path(fitted.report.html()).read_text().count("rank 1") > 0
    report, last = fitted.report, fitted.history[-1]
    assert report["rows"] == sum(report["rows_by_rank"]) == ROWS
    assert 0 < report["feed_wait_seconds"] < report["train_seconds"] < report["seconds"]
    assert report["rows_per_second"] == pytest.approx(last["samples"] / report["train_seconds"])
    assert {path.name for path in run.iterdir()} == {"checkpoints", "events", *WRITTEN}
    assert json.loads((run / "history.json").read_text()) == fitted.history
    config = json.loads((run / "config.json").read_text())
    assert (config["class"], config["epochs"], config["inputCols"]) == ("TorchClassifier", 3, ["x"])
    assert config["strategy"].startswith("AllReduce(")
    epochs = [("epoch", row) for row in fitted.history]
    assert diary.lines == [("start", "TorchClassifier"), *epochs, ("end", None, fitted)]
    logs = capsys.readouterr().err
    for rank in (0, 1):
        assert f"[rank {rank}, {socket.gethostname()}] printed by {rank} after 1" in logs
        assert f"[rank {rank}, {socket.gethostname()}] WARNING app: logged by {rank} after 1" in logs

    before = sorted((run / "events").iterdir()), (run / "config.json").read_text()
    with pytest.raises(InvalidInput, match=r"Take another runDir.* These differ: maxGradNorm was"):
        classifier(**settings, maxGradNorm=1.0).fit(data)
    assert (sorted((run / "events").iterdir()), (run / "config.json").read_text()) == before
    resumed = classifier(**settings, epochs=4).fit(data)
    assert payloads(read_events(run / "events"), "epoch") == resumed.history
    assert len(resumed.history) == 4


def test_slow_worker_is_named_and_warnings_are_shown(data, capsys):
    report = classifier(model=partial(Slow, 3, 3), epochs=2, callbacks=[Talks()]).fit(data).report
    assert report["slowest_rank"] == 1
    assert report["skew_by_rank"][1] > 1.2
    logs = capsys.readouterr().err
    assert "WARNING app: logged by 1 after 1" in logs
    assert "] printed by" not in logs


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"strategy": ParallelSGD(rounds=3, shard_batch_size=8)}], ids=["gang", "rounds"])
def test_unreachable_driver_costs_no_event(data, tmp_path, monkeypatch, given):
    monkeypatch.setattr(SparkCluster, "_channel", unreachable)
    fitted = classifier(**given, runDir=str(tmp_path)).fit(data)
    assert (len(fitted.history), fitted.report["events_dropped"]) == (3, 0)
    events = read_events(tmp_path / "events")
    assert all(event.received is None for event in events if event.rank >= 0 and event.kind != "outcome")
    for rank in (0, 1):
        assert sum(step["rows"] for step in payloads(events, "step", rank)) > 0
    if not given:
        assert payloads(events, "epoch") == fitted.history
    valid(json.loads((tmp_path / "timeline.json").read_text()))


@pytest.mark.slow
def test_without_telemetry_nothing_is_measured_or_written(data, tmp_path, capsys):
    fitted = classifier(telemetry=False, epochs=1, runDir=str(tmp_path)).fit(data)
    assert not (tmp_path / "events").exists()
    assert not (tmp_path / "timeline.json").exists()
    assert "phases" not in fitted.report
    assert "epoch 1" not in capsys.readouterr().err


@pytest.mark.slow
def test_events_of_rounds(spark, data, tmp_path):
    diary, run = Diary(), tmp_path / "two"
    strategy = ParallelSGD(rounds=2, epochs=2, shard_batch_size=8)
    fitted = classifier(strategy=strategy, trackers=[diary], runDir=str(run)).fit(data)
    events = read_events(run / "events")
    for shard in (0, 1):
        spans = payloads(events, "span", shard)
        assert [span["round"] for span in spans if span["name"] == "round"] == [1, 2]
        steps = payloads(events, "step", shard)
        assert sum(step["rows"] for step in steps) == 2 * 2 * fitted.report["rows_by_part"][shard]
        assert {"forward", "backward", "update"} <= {phase for step in steps for phase in step["seconds"]}
    assert [payload["round"] for payload in payloads(events, "round")] == [1, 2]
    assert [line[0] for line in diary.lines] == ["start", "epoch", "epoch", "end"]
    assert "begin" in {event.kind for event in events}
    assert {f"TorchClassifier two: round {number}, Round" for number in (1, 2)} <= {*jobs(spark)}
