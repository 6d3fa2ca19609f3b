"""Settings of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession


def setting(spark: SparkSession, name: str) -> str:
    """A setting of the session or application; empty if unset."""
    return str(spark.conf.get(name, ""))
