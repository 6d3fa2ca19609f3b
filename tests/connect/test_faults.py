"""Servers that end, and gangs that users cancel."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import ClusterUnavailable, SessionLost, Stopped
from sparkdl.spark.cluster import SparkCluster
from tests.connect.fits import classifier, digests, rows
from tests.connect.processes import serving
from tests.contracts import work

pytestmark = pytest.mark.chaos


COLUMNS = Columns((InputColumn("x0"),), row_id=InputColumn("id", "int64"))


class Rows:
    """Counts rows."""

    def map(self, state: Any, shard: Any) -> Any:
        return {"rows": torch.tensor(shard.rows)}, None

    def reduce(self, left: Any, right: Any) -> Any:
        return {"rows": left["rows"] + right["rows"]}


@dataclass(frozen=True)
class KillsServer:
    """A callback that kills the server after step 12."""

    group: int
    every_rank = False

    def on_step(self, run: Any) -> None:
        if run.clock.step == 12:
            os.killpg(self.group, signal.SIGKILL)


@contextmanager
def session_on(url: str) -> Any:
    """Another session of this process, which waits five seconds for its server."""
    before = SparkSession.active()
    session: Any = SparkSession.builder.remote(url).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=4)])
    try:
        yield session
    finally:
        session.release_session_on_close = False
        session.stop()
        ConnectSession._set_default_and_active_session(before)  # type: ignore[arg-type]


def test_rounds_end_with_their_server_and_a_fit_resumes_in_a_new_session(
    spark: SparkSession, tmp_path: Any, caplog: Any, monkeypatch: Any
) -> None:
    settings: Any = {"epochs": 6, "checkpointInterval": 5, "seed": 3}
    with serving(tmp_path, "local-cluster[1,2,1024]") as server, session_on(server.url) as lost:
        fit = classifier(runDir=str(tmp_path / "run"), callbacks=[KillsServer(server.group)], **settings)
        with SparkCluster(lost, 2).map_reduce(rows(lost).select("id", "x0"), COLUMNS) as jobs:
            jobs.run(Rows(), {})
            with pytest.raises(SessionLost, match=r"server of Spark Connect has gone, .* the same runDir") as caught:
                fit.fit(rows(lost))
            assert isinstance(caught.value, ClusterUnavailable)
            assert "the server of Spark Connect has not answered for" in caplog.text
            assert "the next starts" not in caplog.text
            with pytest.raises(SessionLost):
                jobs.run(Rows(), {})
            for name in ("sql", "table", "range"):  # Spark's client would try each for ten minutes
                monkeypatch.setattr(lost, name, lambda *_: pytest.fail("nobody answers"))
        monkeypatch.undo()
    data = rows(spark)
    resumed = classifier(runDir=str(tmp_path / "run"), **settings).fit(data)
    assert resumed.report["restarts"] == 1
    assert digests(resumed, data) == digests(classifier(**settings).fit(data), data)


# ---- cancellation ----------------------------------------------------------------------------------------------------


def active_jobs(spark: SparkSession) -> list[int]:
    """On the server, the jobs that run."""
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def cancel_job(spark: SparkSession) -> None:
    """On the server, what its page of jobs does."""
    (job,) = active_jobs(spark)
    context: Any = spark.sparkContext._jsc
    context.sc().cancelJob(job)


def cancel_stage(spark: SparkSession) -> None:
    """On the server, what its page of stages does."""
    (stage,) = spark.sparkContext.statusTracker().getActiveStageIds()
    context: Any = spark.sparkContext._jsc
    context.sc().cancelStage(stage)


@pytest.mark.parametrize("by", ["interrupt", "job", "stage"])
def test_gang_ends_by_an_interrupt_and_in_the_server_s_pages(
    by: str, server: Any, cluster: SparkCluster, tmp_path: Any
) -> None:
    pipes = [str(tmp_path / f"pipe{rank}") for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)

    def waits(world: Any, shard: Any) -> str:
        with open(pipes[world.rank]) as pipe:
            return pipe.read()

    def cancel() -> list[int]:
        ends = [os.open(pipe, os.O_WRONLY) for pipe in pipes]  # returns once the worker reads
        how: dict[str, Callable[[], object]] = {
            "interrupt": lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT),
            "job": lambda: server.call(cancel_job),
            "stage": lambda: server.call(cancel_stage),
        }
        how[by]()
        return ends

    expected = {"interrupt": (KeyboardInterrupt, "^$"), "job": (Stopped, "the user"), "stage": (Stopped, "Stage")}
    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(cancel)
        with pytest.raises(expected[by][0], match=expected[by][1]):
            cluster.gang(waits)
        jobs = server.call(active_jobs)
        for end in cancelled.result(60):
            os.close(end)
    assert jobs == []
    assert [worker["rank"] for worker in cluster.gang(work.who)] == [0, 1]
