"""Accuracies on real data sets, from files in the folder SPARKDL_DATA, by default ``../shared/data``."""

from functools import partial

import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import functions as F

from examples.adult_net import Perceptron
from sparkdl import TorchClassifier
from tests.ml import nets
from tests.rounds.data import real

pytestmark = pytest.mark.slow


WORDS = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country"]
NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]


def test_adult_with_defaults(spark):
    """Five numbers and eight categories; the fit takes every default."""
    options = {"header": True, "inferSchema": True, "ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
    label = F.col("Y").startswith(">50K").cast("int")
    train, test = (
        spark.read.options(**options).csv(str(real(f"adult.{name}"))).withColumn("label", label)
        for name in ("data", "test")
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
    assert model.evaluate(prepared.transform(test)).auc >= 0.90
    assert (len(model.history), model.report["workers"]) == (10, [2])


def test_kddcup(spark):
    """Network connections: 38 numbers, three categories, and most connections are of three of 23 kinds."""
    kinds = {1: "protocol", 2: "service", 3: "flag", 41: "kind"}
    schema = ", ".join(f"{kinds.get(i, f'c{i}')} {'string' if i in kinds else 'double'}" for i in range(42))
    rows = spark.read.schema(schema).csv(str(real("kddcup.data_10_percent.gz"))).repartition(2).cache()
    numbers = F.array(*(F.log1p(f"c{i}").cast("float") for i in range(42) if i not in kinds))
    indexer = StringIndexer(inputCols=[*kinds.values()], outputCols=["p", "s", "f", "label"]).fit(rows)
    indices = [F.col(name).cast("int").alias(name) for name in ("p", "s", "f", "label")]
    tenth = (F.monotonically_increasing_id() % 10).alias("tenth")
    rows = indexer.transform(rows).select(numbers.alias("numbers"), *indices, tenth)
    adam = partial(torch.optim.Adam, lr=4e-3)
    classifier = TorchClassifier(
        model=nets.Connections, inputCols=["numbers", "p", "s", "f"], optimizer=adam, batchSize=2048, epochs=3
    )
    metrics = classifier.fit(rows.where("tenth > 0")).evaluate(rows.where("tenth = 0"))
    assert metrics.accuracy >= 0.99
    assert metrics.macro_f1 >= 0.5  # always the commonest kind: 0.03
