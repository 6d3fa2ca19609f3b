"""Metrics on real data sets, from files in the folder SPARKDL_DATA, by default ``../shared/data``.

Without a file its test skips; with SPARKDL_REQUIRE_DATA it fails.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import functions as F
from torch import nn

from benchmarks.federated import digits
from benchmarks.memory.main import anonymous
from examples.adult_net import Perceptron
from sparkdl import SparkCluster, TorchClassifier
from sparkdl.ensembles.fitted import output_columns
from sparkdl.io.threads import watching
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


SETTINGS = {"numWorkers": 2, "batchSize": 256}


def test_a9a(spark):
    """Adult as sparse vectors."""
    reader = spark.read.format("libsvm").option("numFeatures", 123)
    train, test = (
        reader.load(real(name)).withColumn("label", (F.col("label") > 0).cast("int")) for name in ("a9a", "a9a.t")
    )
    adam = partial(torch.optim.Adam, lr=5e-3)
    model = TorchClassifier(model=partial(nn.Linear, 123, 2), optimizer=adam, epochs=5, **SETTINGS).fit(train)
    assert model.report["rows"] == len(Path(real("a9a")).read_bytes().splitlines())
    assert measure(model.transform(test), "label", output_columns(model)).accuracy >= 0.84


WORDS = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country"]
NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]


def test_adult_with_defaults(spark):
    """Five numbers and eight categories; the fit takes every default."""
    options = {"header": True, "inferSchema": True, "ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
    train, test = (
        spark.read.options(**options).csv(real(name)).withColumn("label", F.col("Y").startswith(">50K").cast("int"))
        for name in ("adult.data", "adult.test")
    )
    indices, vectors = ([f"{kind} of {name}" for name in WORDS] for kind in ("index", "vector"))
    indexed = StringIndexer(inputCols=WORDS, outputCols=indices, handleInvalid="keep")
    encoded = OneHotEncoder(inputCols=indices, outputCols=vectors)
    numbers = VectorAssembler(inputCols=NUMBERS, outputCol="numbers")
    scaled = StandardScaler(inputCol="numbers", outputCol="scaled", withMean=True)
    assembled = VectorAssembler(inputCols=["scaled", *vectors], outputCol="features")
    prepared = Pipeline(stages=[indexed, encoded, numbers, scaled, assembled]).fit(train)
    size = prepared.transform(train).first()["features"].size

    classifier = TorchClassifier(model=Perceptron, modelArgs={"features": size, "hidden": 32})
    model = classifier.fit(prepared.transform(train))
    assert BinaryClassificationEvaluator().evaluate(model.transform(prepared.transform(test))) >= 0.90
    assert (len(model.history), model.report["workers"]) == (10, [2])


def test_mnist_with_defaults(spark):
    """8 000 images of MNIST's test set for training, the other 2 000 for the accuracy."""
    real("t10k-images-idx3-ubyte.gz")
    train, test = (
        spark.createDataFrame(
            pa.table({"features": pa.array(list(images.pixels.astype(np.float32) / 255)), "label": images.digits})
        )
        for images in digits.mnist(0.2, seed=0)
    )
    model = TorchClassifier(model=nets.mnist).fit(train)
    metrics = measure(model.transform(test), "label", output_columns(model))
    assert (metrics.rows, len(model.history), model.report["workers"]) == (2_000, 10, [2])
    assert metrics.accuracy >= 0.97


def connections(spark):
    """Network connections: 38 numbers as one array, three categories, and one of 23 kinds."""
    kinds = {1: "protocol", 2: "service", 3: "flag", 41: "kind"}
    schema = ", ".join(f"{kinds.get(i, f'c{i}')} {'string' if i in kinds else 'double'}" for i in range(42))
    rows = spark.read.schema(schema).csv(real("kddcup.data_10_percent.gz"))
    numbers = F.array(*(F.log1p(f"c{i}").cast("float") for i in range(42) if i not in kinds))
    names = list(kinds.values())
    return rows.select(numbers.alias("numbers"), *names, (F.monotonically_increasing_id() % 10).alias("tenth")), names


def test_balanced_classes_of_kddcup(spark):
    """Downloads of pirated software are one of 96 connections, and look like normal ones."""
    rows = connections(spark)[0].where("kind in ('normal.', 'warezclient.')")
    rows = rows.select("numbers", (F.col("kind") == "warezclient.").cast("int").alias("label"), "tenth")
    rows = rows.sample(0.3, seed=0).repartition(2).cache()
    adam = partial(torch.optim.Adam, lr=0.01)
    plain = TorchClassifier(
        model=partial(nn.Linear, 38, 2), inputCols=["numbers"], optimizer=adam, epochs=2, **SETTINGS
    )
    recalls = []
    for classifier in (plain, plain.copy({plain.classWeights: "balanced"})):
        model = classifier.fit(rows.where("tenth > 0"))
        correct = (F.col("prediction") == F.col("label")).cast("double")
        scored = model.transform(rows.where("tenth = 0")).groupBy("label").agg(F.avg(correct)).orderBy("label")
        recalls.append([row[1] for row in scored.collect()])
    (_, rare), (_, balanced_rare) = recalls
    assert balanced_rare > rare + 0.3
    assert np.mean(recalls[1]) > np.mean(recalls[0]) + 0.1


MEMORY = 700 << 20  # bytes; an idle worker that has imported torch has about 200 MB


def test_kddcup(spark):
    """Most connections are of three of 23 kinds."""
    rows, names = connections(spark)
    # Only one task can read the one file; then each executor has half of the rows.
    rows = rows.repartition(2).cache()
    indexer = StringIndexer(inputCols=names, outputCols=["p", "s", "f", "label"]).fit(rows)
    indices = [F.col(name).cast("int").alias(name) for name in ("p", "s", "f", "label")]
    rows = indexer.transform(rows).select("numbers", *indices, "tenth")
    settings = SETTINGS | {"optimizer": partial(torch.optim.Adam, lr=4e-3), "batchSize": 2048, "epochs": 3}
    processes, peaks = [worker["pid"] for worker in SparkCluster(spark, 2).gang(work.who)], [0]

    def look(ended):
        while not ended.wait(0.02):
            peaks.append(max(map(anonymous, processes)))

    with watching(look, "memory"):
        classifier = TorchClassifier(model=nets.Connections, inputCols=["numbers", "p", "s", "f"], **settings)
        model = classifier.fit(rows.where("tenth > 0"))
    metrics = measure(model.transform(rows.where("tenth = 0")), "label", output_columns(model))
    assert model.report["rows"] + metrics.rows == 494021
    assert metrics.accuracy >= 0.99
    assert metrics.macro_f1 >= 0.5  # always the commonest kind: 0.03
    assert 0 < max(peaks) < MEMORY
