"""The Spark session of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def stopped_session() -> Iterator[SparkSession]:
    """A block with the session of this process, which Spark stops at its end.

    In Spark 4.0, a session of Spark Connect is no context manager itself.
    """
    spark = SparkSession.builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
