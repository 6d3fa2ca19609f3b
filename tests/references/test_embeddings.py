"""Categories of real data in one table, through the front door: as good as an embedding in one process."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import InputColumn, Table, TorchClassifier, TorchModel, load_predictor
from tests.references.test_tables import NUMBERS, WORDS
from tests.rounds.data import real
from tests.sessions import drive, session

SIZE, WIDTH, SEEDS = 20_000, 16, range(3)
adagrad = partial(torch.optim.Adagrad, lr=0.05)


class Categories(nn.Module):
    """The vectors of a row's categories and its numbers, and two layers."""

    def __init__(self, values: nn.Module, categories: int, numbers: int, classes: int) -> None:
        super().__init__()
        self.values = values
        self.layers = nn.Sequential(nn.Linear(categories * WIDTH + numbers, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, numbers: Tensor, *ids: Tensor) -> Tensor:
        vectors = self.values(torch.stack(ids, 1)).flatten(1)
        output: Tensor = self.layers(torch.cat([vectors, numbers], 1))
        return output


def with_table(*sizes: int) -> nn.Module:
    return Categories(Table(SIZE, WIDTH, optimizer=adagrad, init=0.05), *sizes)


def with_embedding(*sizes: int) -> nn.Module:
    values = nn.Embedding(SIZE, WIDTH)
    nn.init.uniform_(values.weight, -0.05, 0.05)
    return Categories(values, *sizes)


def adult(spark: SparkSession) -> tuple[DataFrame, DataFrame, list[str], int]:
    options = {"header": True, "inferSchema": True, "ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
    numbers = F.array(*(F.log1p(name).cast("float") for name in NUMBERS)).alias("numbers")
    label = F.col("Y").startswith(">50K").cast("int").alias("label")
    train, test = (
        spark.read.options(**options).csv(str(real(f"adult.{name}"))).select(numbers, *WORDS, label).cache()
        for name in ("data", "test")
    )
    return train, test, WORDS, 2


def kddcup(spark: SparkSession) -> tuple[DataFrame, DataFrame, list[str], int]:
    kinds = {1: "protocol", 2: "service", 3: "flag", 41: "kind"}
    schema = ", ".join(f"{kinds.get(i, f'c{i}')} {'string' if i in kinds else 'double'}" for i in range(42))
    rows = spark.read.schema(schema).csv(str(real("kddcup.data_10_percent.gz"))).repartition(2)
    numbers = F.array(*(F.log1p(f"c{i}").cast("float") for i in range(42) if i not in kinds)).alias("numbers")
    attacks = F.array_position(F.array(*map(F.lit, ("smurf.", "neptune.", "normal."))), F.col("kind")).cast("int")
    categories = ["protocol", "service", "flag"]
    rows = rows.select(numbers, *categories, attacks.alias("label"), (F.xxhash64(*categories, "c4") % 10).alias("part"))
    rows = rows.cache()
    return rows.where("part <> 0"), rows.where("part = 0"), categories, 4


def fitted(train: DataFrame, categories: list[str], classes: int, numbers: int, **settings: Any) -> TorchModel:
    specs = [InputColumn(name, hash=SIZE) for name in categories]
    estimator = TorchClassifier(
        inputCols=["numbers", *categories], columnSpecs=specs, optimizer=adagrad, batchSize=512, epochs=3
    )
    make = settings.pop("make")
    estimator.setModel(partial(make, len(categories), numbers, classes))
    return estimator.setParams(**settings).fit(train)


def train_all() -> dict[str, Any]:
    """The figures of tables and embeddings by data set and seed, and how far predictions differ."""
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, session(folder, "local-cluster[2,1,1024]") as spark:
        for name, data in {"adult": adult, "kddcup": kddcup}.items():
            train, test, categories, classes = data(spark)
            numbers = len(train.first()["numbers"])
            for kind, settings in {
                "table": {"make": with_table, "numWorkers": 2},
                "embedding": {"make": with_embedding, "numWorkers": 1},
            }.items():
                for seed in SEEDS:
                    model = fitted(train, categories, classes, numbers, seed=seed, **settings)
                    metrics = model.evaluate(test)
                    answers.setdefault(f"{name} {kind}", []).append(metrics.auc if classes == 2 else metrics.accuracy)
                    print(name, kind, seed, answers[f"{name} {kind}"][-1], file=sys.stderr)
                if kind == "table":
                    answers[f"{name} apart"] = compared(model, test.limit(500), f"{folder}/{name}")
                    answers[f"{name} joined"] = joined(model, test, categories[0])
    return answers


def compared(model: TorchModel, rows: DataFrame, saved: str) -> float:
    """How far probabilities of a saved model without Spark are from those of ``transform``."""
    model.save(saved)
    table = rows.toArrow()  # a limit may return other rows the next time
    frame = rows.sparkSession.createDataFrame(table)
    scored = np.stack([row["probability"].toArray() for row in TorchModel.load(saved).transform(frame).collect()])
    predicted = load_predictor(saved, modules=["tests"]).predict(table)["probability"].to_pylist()
    return float(np.abs(np.stack(predicted) - scored).max())


def joined(model: TorchModel, rows: DataFrame, category: str) -> list[int]:
    """Distinct values of a category, and those with a vector in the table's DataFrame."""
    ids = F.expr(f"pmod(hash('{category}', `{category}`), {SIZE})").cast("bigint").alias("id")
    values = rows.select(category, ids).distinct()
    return [values.count(), values.join(model.table("values"), "id").where(F.size("vector") == WIDTH).count()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_categories_in_one_table_are_as_good_as_an_embedding() -> None:
    answers = drive(train_all, timeout=1700).result
    for name in ("adult", "kddcup"):
        table, embedding = np.array(answers[f"{name} table"]), np.array(answers[f"{name} embedding"])
        noise = max(np.ptp(table), np.ptp(embedding), 0.002)
        print(f"{name}: table {table.round(4)}, embedding {embedding.round(4)}, seeds differ by {noise:.4f}")
        assert abs(table.mean() - embedding.mean()) <= noise
        assert answers[f"{name} apart"] <= 1e-5
        values, vectors = answers[f"{name} joined"]
        assert values == vectors > 1
