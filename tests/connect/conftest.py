"""This process as the client of a server.

pyspark keeps in the environment that a process is a client: these tests run after all others of their process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkdl.spark.cluster import SparkCluster
from tests.connect.processes import CLIENT, Server, serving
from tests.sessions import make_loggers


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(server: Server) -> Iterator[SparkSession]:
    """The client's session, with two executors of one core each behind it."""
    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()
    make_loggers()
    with pytest.MonkeyPatch.context() as patch:
        for name in CLIENT:  # pyspark sets them, and here they end
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
