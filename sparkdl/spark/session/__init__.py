"""The kinds of Spark sessions, and what sparkdl asks of each.

``session_of`` chooses the kind: a classic session has the driver in a JVM of this host, and one of Spark Connect is the
client of a server. Only the files of the classic session and ``classic_tasks.py`` touch a SparkContext, RDDs,
broadcasts and the JVM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, is_remote

from sparkdl.io.files import StrPath
from sparkdl.spark.session.protocol import Session, session_of
from sparkdl.spark.session.settings import setting
from sparkdl.spark.session.shared_bytes import SharedBytes, shared

__all__ = [
    "Session",
    "SharedBytes",
    "forwarding_sigterm",
    "persisted",
    "qualify",
    "release",
    "result_limit",
    "session_of",
    "setting",
    "shared",
]


def qualify(spark: SparkSession, path: StrPath) -> str:
    """The path as a URI with its filesystem, as Spark resolves it."""
    return session_of(spark).qualify(os.fspath(path))


def result_limit() -> int | None:
    """Bytes that Spark's driver accepts as results of a job; None if there is no limit or no driver in this process."""
    if is_remote():
        return None
    from sparkdl.spark.session.classic import result_limit

    return result_limit()


@contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Persist rows in memory and on disk for the block."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        frame.unpersist()


def release(frame: DataFrame) -> None:
    """Free the blocks of a DataFrame from ``localCheckpoint``, if the application still runs."""
    session_of(frame.sparkSession).release(frame)


def forwarding_sigterm(spark: SparkSession) -> AbstractContextManager[None]:
    """Within the block, turn SIGTERM to the JVM into a stop request, like ``sparkdl.cluster.shutdown.stoppable``.

    Under spark-submit, cluster managers and ``docker stop`` signal the JVM, which is the parent process. By default it
    would stop the SparkContext, and the gang, at once. If the JVM accepts no handler, a warning is issued.
    """
    return session_of(spark).forwarding_sigterm()
