"""A server of Spark Connect in a process of its own, and this process as its client.

pyspark keeps in the environment that a process is a client: these tests run after all others of their process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkdl.spark.cluster import SparkCluster
from tests.sessions import ROOT, driver_environment, make_loggers


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: for clients.
        call: runs a top-level function on the server's classic session, and returns its result.
    """

    url: str
    call: Callable[[Callable[[SparkSession], Any]], Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with open(folder / "errors", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.connect.server", str(folder)],
            cwd=ROOT,
            env=driver_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def answer() -> Any:
        line = answers.readline()
        assert line, (folder / "errors").read_text(errors="replace")[-4000:]
        return json.loads(line)

    def call(function: Callable[[SparkSession], Any]) -> Any:
        print(f"{function.__module__}:{function.__name__}", file=requests, flush=True)
        return answer()

    try:
        yield Server(f"sc://127.0.0.1:{answer()}", call)
    finally:
        requests.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            answers.close()


@pytest.fixture(scope="session")
def spark(server: Server) -> Iterator[SparkSession]:
    """The client's session, with two executors of one core each behind it."""
    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()
    make_loggers()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):  # pyspark sets them, and here they end
            patch.setenv(name, "")
            del os.environ[name]
        session = SparkSession.builder.remote(server.url).getOrCreate()
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture
def cluster(spark: SparkSession) -> SparkCluster:
    return SparkCluster(spark, 2, timeout=60.0)
