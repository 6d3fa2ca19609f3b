"""A Spark cluster on this machine with real executors, and the rows of the benchmarks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.pairs import seconds
from sparkdl.spark.slots.capacity import wait_for_slots

ROOT = Path(__file__).resolve().parents[1]
FEATURES = 28


@contextmanager
def session(
    name: str, *, executors: int = 2, mebibytes: int = 2048, master: str | None = None, **more: str
) -> Iterator[SparkSession]:
    """A session whose executors, one core each, have all registered.

    Args:
        name: of the application.
        executors: number of executors.
        mebibytes: memory of each executor's JVM.
        master: URL of a standalone cluster; None: a ``local-cluster``.
        more: settings of Spark, which replace the ones here.
    """
    # Driver and executors run this Python, and nothing listens beyond this machine.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={ROOT}/conf/log4j2.properties",
        "spark.executor.memory": f"{mebibytes}m",  # local-cluster's own figure is the upper limit
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # executors import the benchmarks from there
        "spark.python.daemon.module": "sparkdl.spark.python_daemon",
        "spark.python.worker.reuse": "true",
        "spark.sql.debug.maxToStringFields": 1000,  # no warning about 28 expressions
        "spark.sql.warehouse.dir": "file:/tmp/sparkdl-warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master is not None:
        settings |= {
            "spark.cores.max": executors,
            "spark.executor.cores": 1,
        }
    settings |= more
    builder = SparkSession.builder.appName(name).master(master or f"local-cluster[{executors},1,{mebibytes}]")
    spark = builder.config(map=settings).getOrCreate()
    try:
        wait_for_slots(spark, executors, timeout=60, report=_ignore)
        yield spark
    finally:
        spark.stop()


def samples(spark: SparkSession, rows: int, *, partitions: int, features: int = FEATURES) -> DataFrame:
    """Random rows: ``features`` is ``array<float>``, ``label`` a float."""
    numbers = [F.rand(seed).cast("float") for seed in range(features)]
    frame = spark.range(0, rows, 1, partitions).select(F.array(*numbers).alias("features"))
    label = F.col("features")[0] - F.col("features")[1] * F.col("features")[2]
    return frame.withColumn("label", label.cast("float"))


def materialised(frame: DataFrame) -> DataFrame:
    """Persist and compute a frame."""
    frame = frame.persist()
    frame.count()
    return frame


def written(frame: DataFrame) -> float:
    """Seconds to write a frame to Spark's noop sink."""
    return seconds(frame.write.format("noop").mode("overwrite").save)


def _ignore(what: str, waited: float) -> None:
    """No warning: executors of this machine register within seconds."""
