"""The measures, alike in both kinds of session. Each function returns its figure; ``path`` has the Parquet files."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.mlp import adam, mlp
from benchmarks.pairs import seconds
from benchmarks.rounds_overhead.works import Nothing
from benchmarks.session import samples, written
from sparkdl import Bagging, SparkCluster, TorchClassifier, TorchModel
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import Stopped
from sparkdl.io.weights import pack

FEATURES, WORKERS, MEMBERS, EMPTY_ROUNDS = 8, 2, 8, 20
_TAG = "benchmark"

network = partial(mlp, FEATURES, 64, 64, 2)


def write(spark: SparkSession, path: str, rows: int) -> float:
    """Seconds to write random rows of two classes to two files."""
    frame = samples(spark, rows, partitions=WORKERS, features=FEATURES)
    frame = frame.withColumn("label", (F.col("label") > 0.25).cast("int"))
    return seconds(partial(frame.write.parquet, path))


def classifier(**params: Any) -> TorchClassifier:
    """An estimator of the benchmark's network."""
    return TorchClassifier(model=network, optimizer=adam, inputCols=["features"], **params)


def fit(spark: SparkSession, path: str, epochs: int) -> float:
    """Seconds of a whole fit on two workers."""
    rows = spark.read.parquet(path)
    return seconds(lambda: classifier(numWorkers=WORKERS, epochs=epochs).fit(rows))


def transform(spark: SparkSession, path: str, count: int) -> float:
    """Rows per second of a ``transform`` of ``count`` rows, written to Spark's noop sink."""
    rows = spark.read.parquet(path)
    model = TorchModel(factory=network, weights=pack(network()), kind="classifier")
    return count / seconds(lambda: written(model.transform(rows)))


def rounds(spark: SparkSession, path: str) -> float:
    """Median seconds of a round that only counts the rows of its shards."""
    rows, columns = spark.read.parquet(path), Columns((InputColumn("features"),), InputColumn("label"))
    with SparkCluster(spark, WORKERS).map_reduce(rows, columns, num_shards=WORKERS) as jobs:
        return median(seconds(lambda: jobs.run(Nothing(), {"x": 0})) for _ in range(EMPTY_ROUNDS))


def members(spark: SparkSession, path: str, epochs: int) -> float:
    """Seconds of a whole fit of eight members, each in a task."""
    rows = spark.read.parquet(path)
    ensemble = Bagging(base=classifier(epochs=epochs), numModels=MEMBERS)
    return seconds(lambda: ensemble.fit(rows))


@dataclass(frozen=True)
class _Tells:
    """A callback that opens a pipe in step 20."""

    pipe: str
    every_rank = False

    def on_step(self, run: Any) -> None:
        if run.clock.step == 20:
            os.close(os.open(self.pipe, os.O_WRONLY))


def cancel(spark: SparkSession, path: str) -> float:
    """Seconds from an interrupt of the jobs of a tag, while a gang trains, to the end of its ``fit``."""
    rows, interrupted = spark.read.parquet(path), []
    with tempfile.TemporaryDirectory() as folder:
        pipe = f"{folder}/pipe"
        os.mkfifo(pipe)

        def interrupt() -> None:
            os.close(os.open(pipe, os.O_RDONLY))  # returns once the worker opens it
            interrupted.append(time.perf_counter())
            spark.interruptTag(_TAG)

        threading.Thread(target=interrupt, daemon=True).start()
        spark.addTag(_TAG)
        try:
            classifier(numWorkers=WORKERS, epochs=10_000, callbacks=[_Tells(pipe)]).fit(rows)
        except Stopped:
            return time.perf_counter() - interrupted[0]
        finally:
            spark.removeTag(_TAG)
    raise RuntimeError("the fit ended before its interrupt")
