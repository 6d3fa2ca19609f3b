"""A Spark cluster on this machine with real executors, and the rows that benchmarks train on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.pairs import seconds
from sparkdl.spark.resources import wait_for_slots

ROOT = Path(__file__).resolve().parents[1]
FEATURES = 28


@contextmanager
def session(
    name: str, *, executors: int = 2, mebibytes: int = 2048, master: str | None = None
) -> Iterator[SparkSession]:
    """A session whose executors, one core each, have all registered.

    Args:
        name: of the application.
        executors: how many.
        mebibytes: memory of each one's JVM.
        master: the URL of a standalone cluster; None for a ``local-cluster`` of this process.
    """
    # Driver and executors run this Python, and nothing listens beyond this machine.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={ROOT}/conf/log4j2.properties",
        "spark.executor.memory": f"{mebibytes}m",  # a local cluster's own figure is the most that it may be
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # what is pickled by name is found there
        "spark.python.worker.reuse": "true",
        "spark.sql.debug.maxToStringFields": 1000,  # 28 expressions in a row are no reason for a warning
        "spark.sql.warehouse.dir": "file:/tmp/sparkdl-warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master is not None:
        settings |= {
            "spark.cores.max": executors,
            "spark.executor.cores": 1,
        }
    builder = SparkSession.builder.appName(name).master(master or f"local-cluster[{executors},1,{mebibytes}]")
    spark = builder.config(map=settings).getOrCreate()
    try:
        wait_for_slots(spark, executors, timeout=60, report=_ignore)
        yield spark
    finally:
        spark.stop()


def samples(spark: SparkSession, rows: int, *, partitions: int) -> DataFrame:
    """Random rows, made where they are read: ``features`` is ``array<float>`` of 28, ``label`` a float."""
    numbers = [F.rand(seed).cast("float") for seed in range(FEATURES)]
    frame = spark.range(0, rows, 1, partitions).select(F.array(*numbers).alias("features"))
    label = F.col("features")[0] - F.col("features")[1] * F.col("features")[2]
    return frame.withColumn("label", label.cast("float"))


def materialised(frame: DataFrame) -> DataFrame:
    """The frame, persisted and computed."""
    frame = frame.persist()
    frame.count()
    return frame


def written(frame: DataFrame) -> float:
    """Seconds in which every row of a frame is computed and thrown away, by Spark's noop sink."""
    return seconds(frame.write.format("noop").mode("overwrite").save)


def _ignore(what: str, waited: float) -> None:
    """The executors of this machine are there within seconds."""
