"""Hashed columns: the ids of Spark are those without Spark, in training, ``transform`` and ``predict``."""

from __future__ import annotations

import datetime
import json
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import InputColumn, InvalidInput, TorchClassifier, load_predictor
from sparkdl.data.hashed_columns import hashed_ids
from sparkdl.spark.columns import transport_cast

IDS = 1000
TEXTS = ["", "a", "ab", "abc", "abcd", "abcde", "Straße 7", "日本語", "\x80\xff", "x" * 1001, None]
NUMBERS = [0, 1, -1, 127, -128, 5, 6, 7, 8, 9, None]
WIDE = [0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 7, 8, 9, None]
DAYS = [datetime.date(1970, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)] * 3 + [None] * 2
COLUMNS = {
    "text": (TEXTS, "string"),
    **{kind: (NUMBERS, kind) for kind in ("tinyint", "smallint", "int")},
    "bigint": (WIDE, "bigint"),
    "flag": ([True, False, None] * 3 + [True, False], "boolean"),
    "day": (DAYS, "date"),
    "texts": ([[text, "b"] for text in TEXTS], "array<string>"),
    "days": ([[day] for day in DAYS], "array<date>"),
    "words": ([[text] * (place % 3) for place, text in enumerate(TEXTS[:-1])] + [None], "array<string>"),
}


def specs(name: str) -> list[InputColumn]:
    ragged = "offsets" if name == "words" else None
    return [InputColumn(name, hash=ids, ragged=ragged, hash_as=other) for ids, other in ((IDS, None), (7, "x"))]


@pytest.mark.parametrize("name", COLUMNS)
def test_ids_of_spark_are_those_without_spark(spark: Any, name: str) -> None:
    values, kind = COLUMNS[name]
    frame = spark.createDataFrame([(value,) for value in values], f"`{name}` {kind}")
    for column in specs(name):
        expected = frame.select(transport_cast(frame, column, "float32").alias("ids")).toArrow()["ids"]
        assert hashed_ids(frame.toArrow()[name].combine_chunks(), column).to_pylist() == expected.to_pylist()


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.tags = nn.Embedding(IDS, 4), nn.EmbeddingBag(IDS, 4, mode="sum")
        self.head = nn.Linear(4, 2)

    def forward(self, user: Tensor, tags: Tensor, offsets: Tensor) -> Tensor:
        output: Tensor = self.head(self.users(user) + self.tags(tags, offsets))
        return output


def test_a_model_scores_other_integers_and_without_spark(spark: Any, tmp_path: Any) -> None:
    rows = [(place % 5, [f"t{place % 3}"] * (place % 4), place % 2) for place in range(60)] + [(None, None, 1)]
    frame = spark.createDataFrame(rows, "user int, tags array<string>, label int")
    specs = [InputColumn("user", hash=IDS), InputColumn("tags", hash=IDS, ragged="offsets")]
    model = TorchClassifier(model=Vectors, inputCols=["user", "tags"], columnSpecs=specs, epochs=2).fit(frame)
    model.save(f"{tmp_path}/model")
    expected = probabilities(model.transform(frame).toArrow()["probability"].to_pylist())
    wide = frame.withColumn("user", F.col("user").cast("bigint"))
    assert np.array_equal(probabilities(model.transform(wide).toArrow()["probability"].to_pylist()), expected)
    predictor, table = load_predictor(f"{tmp_path}/model"), frame.select("user", "tags").toArrow()
    texts = frame.select(F.to_json(F.struct("user", "tags")).alias("text")).collect()
    lines = [json.loads(row["text"]) for row in texts]
    records = [{"user": line.get("user"), "tags": line.get("tags")} for line in lines]
    pandas = pd.DataFrame({"user": table["user"].to_pandas(), "tags": table["tags"].to_pylist()})
    for data in (table, pandas, records):
        predicted = predictor.predict(data)["probability"]
        found = predicted.to_pylist() if isinstance(predicted, pa.ChunkedArray) else list(predicted)
        np.testing.assert_allclose(np.stack(found), expected, rtol=0, atol=1e-6)


def probabilities(values: list[Any]) -> np.ndarray:
    return np.array([value["values"] if isinstance(value, dict) else value for value in values])


def test_other_types_raise_before_the_launch(spark: Any) -> None:
    for kind in ("double", "decimal(5,2)", "timestamp", "array<float>"):
        frame = spark.createDataFrame([], f"n {kind}, label int")
        with pytest.raises(InvalidInput, match=r"expected strings, whole numbers.*since it has hash"):
            TorchClassifier(
                model=partial(nn.Embedding, 5, 2), inputCols=["n"], columnSpecs=[InputColumn("n", hash=5)]
            ).fit(frame)
