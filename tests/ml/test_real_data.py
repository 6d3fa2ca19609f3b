"""Metrics on real data sets, from files in the folder SPARKDL_DATA, by default ``../shared/data``.

Without a file its test skips; with SPARKDL_REQUIRE_DATA it fails.
"""

from __future__ import annotations

import gzip
import os
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import nn

from benchmarks.memory.main import anonymous
from sparkdl import SparkCluster, TorchClassifier
from sparkdl.cli.saved_models import output_columns
from sparkdl.ml.evaluation import measure
from tests.contracts import work
from tests.ml import nets
from tests.sessions import ROOT

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("SPARKDL_DATA") or ROOT.parent / "shared" / "data")


def real(name: str) -> str:
    if not (FOLDER / name).is_file():
        missing = pytest.fail if os.environ.get("SPARKDL_REQUIRE_DATA") else pytest.skip
        missing(f"{FOLDER / name} does not exist; set SPARKDL_DATA to its folder")
    return str(FOLDER / name)


def accuracy(predicted: DataFrame) -> float:
    return MulticlassClassificationEvaluator(metricName="accuracy").evaluate(predicted)


SETTINGS = {"numWorkers": 2, "batchSize": 256}
adam = partial(partial, torch.optim.Adam)

KINDS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country")
AMOUNTS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


def test_adult(spark):
    """Who earns more than 50 000 dollars; a missing category is one more category, ``?``."""

    def read(name):
        spaces = {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
        rows = spark.read.csv(real(name), header=True, inferSchema=True, **spaces)
        large = [F.log1p(name).alias(name) for name in ("capital-gain", "capital-loss", "fnlwgt")]
        others = [F.col(name) for name in (*KINDS, "age", "education-num", "hours-per-week")]
        label = F.rtrim("Y", F.lit(".")).isin(">50K").cast("double").alias("label")  # test labels end in a full stop
        return rows.select(*large, *others, label).cache()

    train, test = read("adult.data"), read("adult.test")
    assert (train.count(), test.count()) == (32561, 16281)
    assert 0.23 < test.agg(F.avg("label")).first()[0] < 0.24
    indexed, encoded = [f"{name} index" for name in KINDS], [f"{name} vector" for name in KINDS]
    stages = [
        StringIndexer(inputCols=list(KINDS), outputCols=indexed, handleInvalid="keep"),
        OneHotEncoder(inputCols=indexed, outputCols=encoded),
        VectorAssembler(inputCols=list(AMOUNTS), outputCol="amounts"),
        StandardScaler(inputCol="amounts", outputCol="scaled", withMean=True),
        VectorAssembler(inputCols=["scaled", *encoded], outputCol="features"),
        TorchClassifier(model=nets.income, optimizer=adam(lr=2e-3), epochs=6, **SETTINGS),
    ]
    predicted = Pipeline(stages=stages).fit(train).transform(test)
    assert BinaryClassificationEvaluator(metricName="areaUnderROC").evaluate(predicted) >= 0.90


def test_mnist(spark):
    """8000 and 2000 images as arrays of 28 arrays of 28 bytes' values."""
    with gzip.open(real("t10k-images-idx3-ubyte.gz")) as images, gzip.open(real("t10k-labels-idx1-ubyte.gz")) as labels:
        pixels = np.frombuffer(images.read(), np.uint8, offset=16)
        classes = np.frombuffer(labels.read(), np.uint8, offset=8)
    kind = pa.list_(pa.list_(pa.int16(), 28), 28)
    lines = pa.FixedSizeListArray.from_arrays(pa.array(pixels.astype(np.int16)), 28)
    columns = {
        "pixels": pa.FixedSizeListArray.from_arrays(lines, 28).cast(kind),
        "label": pa.array(classes.astype(np.int32)),
        "valid": pa.array(np.random.default_rng(0).permutation(len(classes)) < 2000),
    }
    rows = spark.createDataFrame(pa.table(columns)).repartition(2).cache()
    train, test = rows.where("not valid"), rows.where("valid")
    assert (train.count(), test.count()) == (8000, 2000)
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=6e-3, total_steps=5 * 8000 // 64)
    given = {"optimizer": adam(lr=1e-3), "scheduler": cycle, "inputCols": ["pixels"], "batchSize": 64, "epochs": 5}
    model = TorchClassifier(model=nets.Images, **SETTINGS | given).fit(train)
    assert accuracy(model.transform(test)) >= 0.96


def test_a9a(spark):
    """Adult as sparse vectors."""
    reader = spark.read.format("libsvm").option("numFeatures", 123)
    train, test = (
        reader.load(real(name)).withColumn("label", (F.col("label") > 0).cast("int")) for name in ("a9a", "a9a.t")
    )
    assert train.count() == len(Path(real("a9a")).read_bytes().splitlines())
    given = {"optimizer": adam(lr=5e-3), "epochs": 5}
    model = TorchClassifier(model=partial(nn.Linear, 123, 2), **SETTINGS | given).fit(train)
    assert model.report["rows"] == train.count()
    assert accuracy(model.transform(test)) >= 0.84


MEMORY = 700 << 20  # bytes; an idle worker that has imported torch has about 200 MB


@contextmanager
def memory(spark):
    """A list with the largest anonymous memory of a worker while the block runs, in bytes."""
    processes = [worker["pid"] for worker in SparkCluster(spark, 2).gang(work.who)]
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.02):
            peak[0] = max(peak[0], *map(anonymous, processes))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def test_kddcup(spark):
    """Network connections, most of three of 23 kinds: 38 numbers as one array, three categories."""
    kinds = {1: "protocol", 2: "service", 3: "flag", 41: "kind"}
    schema = ", ".join(f"{kinds.get(each, f'c{each}')} {'string' if each in kinds else 'double'}" for each in range(42))
    rows = spark.read.schema(schema).csv(real("kddcup.data_10_percent.gz"))
    numbers = F.array(*(F.log1p(f"c{each}").cast("float") for each in range(42) if each not in kinds))
    names = list(kinds.values())
    # Only one task can read the one file; then each executor has half of the rows.
    rows = rows.select(numbers.alias("numbers"), *names, (F.monotonically_increasing_id() % 10).alias("tenth"))
    rows = rows.repartition(2).cache()
    indexer = StringIndexer(inputCols=names, outputCols=["p", "s", "f", "label"]).fit(rows)
    indices = [F.col(name).cast("int").alias(name) for name in ("p", "s", "f", "label")]
    rows = indexer.transform(rows).select("numbers", *indices, "tenth")
    given = {"optimizer": adam(lr=4e-3), "inputCols": ["numbers", "p", "s", "f"], "batchSize": 2048, "epochs": 3}
    with memory(spark) as peak:
        model = TorchClassifier(model=nets.Connections, **SETTINGS | given).fit(rows.where("tenth > 0"))
    found = measure(model.transform(rows.where("tenth = 0")), "label", output_columns(model))
    assert model.report["rows"] + found.rows == 494021
    assert found.accuracy >= 0.99
    assert found.macro_f1 >= 0.5  # always the commonest kind: 0.03
    assert 0 < peak[0] < MEMORY
