"""What a client learns of its workers' events, and what a killed client leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl.errors import WorkerFailed
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events
from tests.connect.fits import Holds, classifier, digests, held, rows
from tests.contracts import work
from tests.sessions import ROOT, command

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Any) -> SparkCluster:
    return SparkCluster(spark, 2, timeout=60.0, event_directory=str(tmp_path / "events"))


def test_events_in_files_arrive_once_and_before_the_result(cluster: SparkCluster) -> None:
    for attempt in (0, 0, 1):  # the second gang appends to the files of the first
        events: list[Event] = []
        cluster.gang(work.who, listener=events.append, attempt=attempt)
        assert {event.attempt for event in events} == {attempt}
        for rank in range(2):
            kinds = [event.kind for event in events if event.rank == rank and event.kind != "span"]
            assert kinds == ["started", "finished", "outcome"]


def test_events_arrive_while_the_gang_runs(cluster: SparkCluster, tmp_path: Any) -> None:
    pipe, heard = str(tmp_path / "pipe"), []
    os.mkfifo(pipe)

    def asks(world: Any, shard: Any) -> str:
        if world.rank:
            return ""
        record("question")
        with open(pipe) as answers:
            return answers.read()

    def answer(event: Event) -> None:
        heard.append(event.kind)
        if event.kind == "question":
            with open(pipe, "w") as answers:
                answers.write("heard")

    assert cluster.gang(asks, listener=answer) == ["heard", ""]
    assert "heartbeat" not in heard


def test_without_events_the_client_hears_of_tasks(spark: SparkSession, tmp_path: Any) -> None:
    pipe, shown = str(tmp_path / "pipe"), []
    os.mkfifo(pipe)

    def asks(world: Any, shard: Any) -> str:
        if world.rank:
            return ""
        with open(pipe) as answers:
            return answers.read()

    def answer(event: Event) -> None:
        if event.kind == "tasks":
            shown.append(event.payload)
            if event.payload["running"] and sum(one["running"] > 0 for one in shown) == 1:
                with open(pipe, "w") as answers:
                    answers.write("shown")

    assert SparkCluster(spark, 2, timeout=60.0).gang(asks, listener=answer) == ["shown", ""]
    assert shown[0]["of"] == 2
    assert all(one != other for one, other in pairwise(shown))


def test_failures_in_files_are_reported_once(cluster: SparkCluster) -> None:
    events: list[Event] = []

    def fails(world: Any, shard: Any) -> None:
        raise ValueError(f"a mistake of rank {world.rank}")

    with pytest.raises(WorkerFailed, match="a mistake of rank"):
        cluster.gang(fails, listener=events.append)
    assert sorted(event.rank for event in events if event.kind == "failed") == [0, 1]


@pytest.mark.chaos
def test_fit_stops_the_gang_of_a_killed_client_and_resumes(server: Any, spark: SparkSession, tmp_path: Any) -> None:
    run, pipe, data = str(tmp_path / "run"), str(tmp_path / "pipe"), rows(spark)
    os.mkfifo(pipe)
    client = subprocess.Popen(command(held, server.url, run, pipe, timeout=280), cwd=ROOT)
    try:
        with open(pipe) as held_step:
            assert held_step.read() == "held"
        os.kill(client.pid, signal.SIGKILL)
        assert client.wait() == -signal.SIGKILL
        resumed = classifier(runDir=run, checkpointInterval=1, callbacks=[Holds(pipe)]).fit(data)
    finally:
        client.kill()
        client.wait()
    assert resumed.report["restarts"] == 1
    first = min(event.clock["step"] for event in read_events(f"{run}/events") if event.attempt == 1 and event.clock)
    assert first >= 3
    assert digests(resumed, data) == digests(classifier().fit(data), data)
