"""Real data sets, from files to figures on rows held out.

They lie in the folder that SPARKDL_DATA names, or else in ``../shared/data`` beside the checkout. Without them these
tests are skipped; where SPARKDL_REQUIRE_DATA is set they fail instead.
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
from pyspark.sql import functions as F
from torch import nn

from benchmarks.memory.main import anonymous
from sparkdl import SparkCluster, TorchClassifier
from sparkdl.cli.saved_models import output_columns
from sparkdl.ml.evaluation import measure
from tests.contracts import work
from tests.ml import nets

ROOT = Path(__file__).resolve().parents[2]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
each_seed = pytest.mark.parametrize("seed", SEEDS)


@pytest.fixture(scope="module")
def real():
    """The path of a data set's file."""
    folder = Path(os.environ.get("SPARKDL_DATA") or ROOT.parent / "shared" / "data")

    def real(name: str) -> Path:
        if not (folder / name).is_file():
            say = pytest.fail if os.environ.get("SPARKDL_REQUIRE_DATA") else pytest.skip
            say(f"{folder / name} is not there; set SPARKDL_DATA to the folder that has it")
        return folder / name

    return real


# ---- Adult: who earns more than 50 000 dollars ------------------------------------------------------------------

KINDS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country")
AMOUNTS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


@pytest.fixture(scope="module")
def adult(spark, real):
    """Training and test rows; a missing category is one more category, ``?``."""

    def read(name):
        rows = spark.read.csv(
            str(real(name)), header=True, ignoreLeadingWhiteSpace=True, ignoreTrailingWhiteSpace=True, inferSchema=True
        )
        large = [F.log1p(name).alias(name) for name in ("capital-gain", "capital-loss", "fnlwgt")]
        others = [F.col(name) for name in (*KINDS, "age", "education-num", "hours-per-week")]
        label = F.rtrim("Y", F.lit(".")).isin(">50K").cast("double").alias("label")
        return rows.select(*large, *others, label).cache()

    return read("adult.data"), read("adult.test")


def adult_pipeline(seed: int) -> Pipeline:
    indexed, encoded = [f"{name} index" for name in KINDS], [f"{name} vector" for name in KINDS]
    classifier = TorchClassifier(
        model=nets.income,
        optimizer=partial(torch.optim.Adam, lr=2e-3),
        numWorkers=2,
        batchSize=256,
        epochs=6,
        seed=seed,
    )
    return Pipeline(
        stages=[
            StringIndexer(inputCols=list(KINDS), outputCols=indexed, handleInvalid="keep"),
            OneHotEncoder(inputCols=indexed, outputCols=encoded),
            VectorAssembler(inputCols=list(AMOUNTS), outputCol="amounts"),
            StandardScaler(inputCol="amounts", outputCol="scaled", withMean=True),
            VectorAssembler(inputCols=["scaled", *encoded], outputCol="features"),
            classifier,
        ]
    )


@pytest.mark.slow
@each_seed
def test_adult(adult, seed, record_property):
    train, test = adult
    assert (train.count(), test.count()) == (32561, 16281)
    assert 0.23 < test.agg(F.avg("label")).first()[0] < 0.24  # labels of the test rows end in a full stop
    predicted = adult_pipeline(seed).fit(train).transform(test)
    area = BinaryClassificationEvaluator(metricName="areaUnderROC").evaluate(predicted)
    record_property("auc", area)
    print(f"adult: AUC {area:.4f}")
    assert area >= 0.90


# ---- MNIST: handwritten digits ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mnist(spark, real):
    """8000 and 2000 images as arrays of 28 arrays of 28 bytes' values."""
    with gzip.open(real("t10k-images-idx3-ubyte.gz")) as images, gzip.open(real("t10k-labels-idx1-ubyte.gz")) as labels:
        pixels = np.frombuffer(images.read(), np.uint8, offset=16)
        classes = np.frombuffer(labels.read(), np.uint8, offset=8)
    kind = pa.list_(pa.list_(pa.int16(), 28), 28)
    lines = pa.FixedSizeListArray.from_arrays(pa.array(pixels.astype(np.int16)), 28)
    table = pa.table(
        {
            "pixels": pa.FixedSizeListArray.from_arrays(lines, 28).cast(kind),
            "label": pa.array(classes.astype(np.int32)),
            "held out": pa.array(np.random.default_rng(0).permutation(len(classes)) < 2000),
        }
    )
    rows = spark.createDataFrame(table).repartition(2).cache()
    return rows.where("not `held out`"), rows.where("`held out`")


@pytest.mark.slow
@each_seed
def test_mnist(mnist, seed, record_property):
    train, test = mnist
    assert (train.count(), test.count()) == (8000, 2000)
    classifier = TorchClassifier(
        model=nets.Images,
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        scheduler=partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=6e-3, total_steps=5 * 8000 // 64),
        inputCols=["pixels"],
        numWorkers=2,
        batchSize=64,
        epochs=5,
        seed=seed,
    )
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(classifier.fit(train).transform(test))
    record_property("accuracy", accuracy)
    print(f"mnist: accuracy {accuracy:.4f}")
    assert accuracy >= 0.96


# ---- a9a: Adult as sparse vectors -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a9a(spark, real):
    def read(name):
        rows = spark.read.format("libsvm").option("numFeatures", 123).load(str(real(name)))
        return rows.withColumn("label", (F.col("label") > 0).cast("int"))

    train, test = read("a9a"), read("a9a.t")
    assert train.count() == len(real("a9a").read_bytes().splitlines())
    return train, test


@pytest.mark.slow
@each_seed
def test_a9a(a9a, seed, record_property):
    train, test = a9a
    classifier = TorchClassifier(
        model=partial(nn.Linear, 123, 2),
        optimizer=partial(torch.optim.Adam, lr=5e-3),
        numWorkers=2,
        batchSize=256,
        epochs=5,
        seed=seed,
    )
    model = classifier.fit(train)
    assert model.report["rows"] == train.count()
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(test))
    record_property("accuracy", accuracy)
    print(f"a9a: accuracy {accuracy:.4f}")
    assert accuracy >= 0.84


# ---- KDD Cup 1999: network connections, most of three of 23 kinds -----------------------------------------------

MEMORY = 700 << 20  # bytes; an idle worker that has imported torch has about 200 MB


@pytest.fixture(scope="module")
def connections(spark, real):
    """38 numbers as one array, three categories and the label as indices; a tenth of the rows held out."""
    kinds = {1: "protocol", 2: "service", 3: "flag", 41: "kind"}
    schema = ", ".join(f"{kinds.get(each, f'c{each}')} {'string' if each in kinds else 'double'}" for each in range(42))
    rows = spark.read.schema(schema).csv(str(real("kddcup.data_10_percent.gz")))
    numbers = F.array(*(F.log1p(f"c{each}").cast("float") for each in range(42) if each not in kinds))
    names = list(kinds.values())
    # Once through the one file, which only one task can unpack; then half of the rows for each executor.
    rows = rows.select(numbers.alias("numbers"), *names, (F.monotonically_increasing_id() % 10).alias("tenth"))
    rows = rows.repartition(2).cache()
    indexer = StringIndexer(inputCols=names, outputCols=["p", "s", "f", "label"]).fit(rows)
    whole = [F.col(name).cast("int").alias(name) for name in ("p", "s", "f", "label")]
    rows = indexer.transform(rows).select("numbers", *whole, "tenth")
    return rows.where("tenth > 0"), rows.where("tenth = 0")


@contextmanager
def memory(spark):
    """The largest anonymous memory of a member's process while the block runs, in bytes: a list of one."""
    processes = [member["pid"] for member in SparkCluster(spark, 2).gang(work.who)]
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


@pytest.mark.slow
@each_seed
def test_kddcup(spark, connections, seed, record_property):
    train, test = connections
    classifier = TorchClassifier(
        model=nets.Connections,
        optimizer=partial(torch.optim.Adam, lr=4e-3),
        inputCols=["numbers", "p", "s", "f"],
        numWorkers=2,
        batchSize=2048,
        epochs=3,
        seed=seed,
    )
    with memory(spark) as peak:
        model = classifier.fit(train)
    found = measure(model.transform(test), "label", output_columns(model))
    record_property("macro_f1", found.macro_f1)
    record_property("anonymous_memory", peak[0])
    print(f"kddcup: macro F1 {found.macro_f1:.4f}, accuracy {found.accuracy:.4f}, {peak[0] >> 20} MB")
    assert model.report["rows"] + found.rows == 494021
    assert found.accuracy >= 0.99
    assert found.macro_f1 >= 0.5  # always the commonest kind: 0.03
    assert 0 < peak[0] < MEMORY
