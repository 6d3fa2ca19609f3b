"""The session of the tests in this folder: its tasks run on executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.sessions import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two executors of one core each, in place of the one that the tests before these had."""
    # ``getActiveSession`` is None in a thread that has dropped its connection to the JVM, as after a time limit.
    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()
    # As on a cluster, Spark generates code here.
    with session(tmp_path_factory.mktemp("executors"), sql__codegen__wholeStage="true") as result:
        yield result
