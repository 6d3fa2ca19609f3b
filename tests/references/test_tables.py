"""Accuracies on real data sets, from files in the folder SPARKDL_DATA, by default ``../shared/data``."""

import math
from functools import partial

import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from examples.adult_net import Perceptron
from sparkdl import ParameterServer, Range, TorchClassifier, TorchTuner
from tests.ml import nets
from tests.rounds.data import real

pytestmark = pytest.mark.slow


WORDS = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country"]
NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]


def adult(spark: SparkSession) -> tuple[DataFrame, DataFrame, int]:
    """Five numbers and eight categories of training and test rows, as one vector, and its size."""
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
    rows = [prepared.transform(frame).select("features", "label").cache() for frame in (train, test)]
    return rows[0], rows[1], rows[0].first()["features"].size


def test_adult_with_defaults(spark):
    """The fit takes every default."""
    train, test, size = adult(spark)
    classifier = TorchClassifier(model=Perceptron, modelArgs={"features": size, "hidden": 32})
    model = classifier.fit(train)
    assert model.evaluate(test).auc >= 0.90
    assert (len(model.history), model.report["workers"]) == (10, [2])


@pytest.mark.timeout(900)
def test_stale_and_downpour_steps_on_adult_reach_synchronous_ones(spark):
    """In as many epochs; each push of two workers is a step of half a batch."""
    train, test, size = adult(spark)
    adagrad, sgd = partial(torch.optim.Adagrad, lr=0.02), partial(torch.optim.SGD, lr=0.02)
    strategies = {
        "synchronous": (ParameterServer(), adagrad),
        "staleness 4": (ParameterServer(staleness=4), adagrad),
        "Downpour": (ParameterServer(staleness=math.inf, every=4, optimizer=adagrad), sgd),
    }
    areas = {}
    for name, (strategy, optimizer) in strategies.items():
        classifier = TorchClassifier(
            model=Perceptron, modelArgs={"features": size, "hidden": 32}, optimizer=optimizer, numWorkers=2, epochs=5
        )
        areas[name] = classifier.setStrategy(strategy).setBatchSize(256).fit(train).evaluate(test).auc
    print("AUC:", {name: round(area, 4) for name, area in areas.items()})
    assert areas["synchronous"] >= 0.9
    assert all(area >= areas["synchronous"] - 0.005 for area in areas.values())


@pytest.mark.timeout(900)
def test_search_on_adult_reaches_the_tuned_settings_from_a_poor_start(spark):
    """The settings of docs/tabular.md, and 24 trials over an estimator that alone learns almost nothing."""
    train, test, size = adult(spark)
    tuned = TorchClassifier(
        model=Perceptron, modelArgs={"features": size, "hidden": 32}, learningRate=0.005, epochs=10, numWorkers=2
    )
    poor = TorchClassifier(
        model=Perceptron,
        modelArgs={"features": size, "hidden": 2},
        learningRate=1e-6,
        epochs=9,
        metrics={"auc": MulticlassAUROC(2, thresholds=200)},
        monitor="valid_auc",
        validationFraction=0.1,
    )
    space = {
        "learningRate": Range(1e-5, 1e-1, log=True),
        "batchSize": [64, 256, 1024],
        "modelArgs.hidden": Range(2, 128, step=1, log=True),
    }
    found = TorchTuner(estimator=poor, paramSpace=space, numTrials=24).fit(train)
    areas = [model.evaluate(test).auc for model in (found, tuned.fit(train), poor.copy().setNumWorkers(1).fit(train))]
    print(f"AUC of the search {areas[0]:.4f}, of the tuned settings {areas[1]:.4f}, of the start {areas[2]:.4f}")
    assert areas[0] >= areas[1] - 0.001
    assert areas[2] < 0.8


def kddcup(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Training and test rows: 38 numbers, three categories, and most connections are of three of 23 kinds."""
    kinds = {1: "protocol", 2: "service", 3: "flag", 41: "kind"}
    schema = ", ".join(f"{kinds.get(i, f'c{i}')} {'string' if i in kinds else 'double'}" for i in range(42))
    rows = spark.read.schema(schema).csv(str(real("kddcup.data_10_percent.gz"))).repartition(2).cache()
    numbers = F.array(*(F.log1p(f"c{i}").cast("float") for i in range(42) if i not in kinds))
    indexer = StringIndexer(inputCols=[*kinds.values()], outputCols=["p", "s", "f", "label"]).fit(rows)
    indices = [F.col(name).cast("int").alias(name) for name in ("p", "s", "f", "label")]
    tenth = (F.monotonically_increasing_id() % 10).alias("tenth")
    rows = indexer.transform(rows).select(numbers.alias("numbers"), *indices, tenth)
    return rows.where("tenth > 0"), rows.where("tenth = 0")


def test_kddcup(spark):
    train, test = kddcup(spark)
    adam = partial(torch.optim.Adam, lr=4e-3)
    classifier = TorchClassifier(
        model=nets.Connections, inputCols=["numbers", "p", "s", "f"], optimizer=adam, batchSize=2048, epochs=3
    )
    metrics = classifier.fit(train).evaluate(test)
    assert metrics.accuracy >= 0.99
    assert metrics.macro_f1 >= 0.5  # always the commonest kind: 0.03


@pytest.mark.timeout(900)
def test_search_on_kddcup_ends_above_the_defaults(spark):
    """Over the weights of the classes and the learning rate, compared by the mean F1 of the 23 kinds."""
    train, test = (rows.cache() for rows in kddcup(spark))
    classifier = TorchClassifier(
        model=nets.Connections,
        inputCols=["numbers", "p", "s", "f"],
        batchSize=2048,
        epochs=6,
        metrics={"f1": MulticlassF1Score(23, average="macro")},
        monitor="valid_f1",
        validationFraction=0.2,
    )
    space = {"classWeights": [None, "balanced"], "learningRate": Range(1e-3, 3e-2, log=True)}
    found = TorchTuner(estimator=classifier, paramSpace=space, numTrials=9, sampler="random").fit(train)
    scores = [model.evaluate(test).macro_f1 for model in (found, classifier.fit(train))]
    print(f"macro F1 of the search {scores[0]:.4f} with {found.bestParams}, of the defaults {scores[1]:.4f}")
    assert scores[0] > scores[1]
