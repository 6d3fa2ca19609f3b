"""Each stage against Spark's: one saved pipeline, on one frame of edge values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml import feature as spark_feature
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from sparkdl.ml.features import reader
from sparkdl.ml.features.column import Column

NAN, INF = math.nan, math.inf
SCHEMA = "s string, t string, d double, e double, i int, l long, f float, b boolean, c double"
ROWS = [
    ("a", "", 1.5, 1e7, 3, -7, 0.1, True, 2.0),
    ("b", "é漢😀", -0.0, -5.5, -1, 1 << 40, -2.5, False, 2.0),
    ("a", "x=y", NAN, 1e-4, 7, 0, NAN, None, 2.0),
    (None, None, None, 0.001, None, None, None, True, 2.0),
    ("c", "abcde", -5.5, 123456.789, 0, -7, 3.5, False, 2.0),
    ("b", " ", 12345.678, 7.0, 3, 5, 0.1, True, 2.0),
]
UNSEEN = ("z", "né", 2.5, 0.0, 9, 5, 7.25, None, 4.0)
VECTORS = [
    Vectors.dense(1.0, -2.0, 3.0, 0.5),
    Vectors.sparse(4, [0, 3], [-4.0, 2.0]),
    Vectors.dense(0.0, NAN, 3.0, -0.0),
    Vectors.sparse(4, [], []),
    Vectors.dense(0.1, 0.7, 3.0, 1e9),
    Vectors.dense(-0.3, 0.2, 3.0, 0.0),
]
SCALED = (  # class, settings and a vector of the frame with a constant, all without NaN but the last
    ("StandardScaler", {}, "v"),
    ("StandardScaler", {"withMean": True, "withStd": False}, "v"),
    ("MinMaxScaler", {"min": -2.0, "max": 5.0}, "v"),
    ("MaxAbsScaler", {}, "v"),
    ("RobustScaler", {"withCentering": True}, "v"),
    ("RobustScaler", {"withScaling": False}, "v"),
    ("Normalizer", {}, "n"),
    ("Normalizer", {"p": 1.0}, "n"),
    ("Normalizer", {"p": INF}, "n"),
    ("Normalizer", {"p": 3.0}, "v"),
    ("Binarizer", {"threshold": 0.5}, "n"),
    ("Binarizer", {"threshold": -0.3}, "n"),
)
BOUNDS = [-INF, 0.0, 1.5, INF]


def stages():
    """Estimators and transformers of all kinds."""
    indexed = {"inputCols": ["si", "bi"], "handleInvalid": "keep"}
    made = [
        ("StringIndexer", {"inputCol": "s", "outputCol": "si", "handleInvalid": "keep"}),
        ("StringIndexer", {"inputCols": ["t", "l", "e", "i"], "outputCols": ["ti", "li", "ei", "ii"]} | KEEP),
        ("IndexToString", {"inputCol": "li", "outputCol": "back", "labels": [*"uvwxyz"]}),
        ("IndexToString", {"inputCol": "si", "outputCol": "known"}),
        ("OneHotEncoder", {**indexed, "outputCols": ["so", "bo"]}),
        ("OneHotEncoder", {**indexed, "outputCols": ["so2", "bo2"], "dropLast": False}),
        ("OneHotEncoder", {"inputCol": "si", "outputCol": "so3"}),
        ("Imputer", {"inputCols": ["d", "f", "i"], "outputCols": ["df", "ff", "if"]}),
        ("Imputer", {"inputCol": "d", "outputCol": "d2", "missingValue": -5.5, "strategy": "median"}),
        ("Bucketizer", {"inputCol": "d", "outputCol": "db", "splits": BOUNDS, "handleInvalid": "keep"}),
        ("Bucketizer", {"inputCols": ["e", "i"], "outputCols": ["eb", "ib"], "splitsArray": [BOUNDS, [-1, 3, 9]]}),
        ("QuantileDiscretizer", {"inputCol": "e", "outputCol": "eq", "numBuckets": 3}),
        ("Binarizer", {"inputCols": ["d", "e"], "outputCols": ["dz", "ez"], "thresholds": [0.5, 7.0]}),
        ("FeatureHasher", {"inputCols": [*"stdeilfb"], "outputCol": "h", "numFeatures": 13}),
        ("FeatureHasher", {"inputCols": [*"stdeilfb"], "outputCol": "h2"} | {"categoricalCols": [*"deilf"]}),
        ("VectorAssembler", {"inputCols": ["d", "b", "bo", "so"], "outputCol": "v0"} | KEEP),
        ("VectorAssembler", {"inputCols": ["df", "n"], "outputCol": "v1"}),
        ("VectorAssembler", {"inputCols": ["df", "i2", "so2", "ff", "ti", "c"], "outputCol": "v"}),
    ]
    for at, (kind, settings, name) in enumerate(SCALED):
        made.append((kind, {"inputCol": name, "outputCol": f"scaled{at}", **settings}))
    return [getattr(spark_feature, kind)(**settings) for kind, settings in made]


KEEP = {"handleInvalid": "keep"}


@pytest.fixture(scope="module")
def transformed(spark, tmp_path_factory):
    """The folder of a fitted pipeline, Spark's rows after it, and the columns before it."""
    path = str(tmp_path_factory.mktemp("saved") / "pipeline")
    extra = [(*row, None if row[7] is None else float(row[7]), float(row[4] or 0)) for row in [*ROWS, UNSEEN]]
    table = [(at, *row, vector) for at, (row, vector) in enumerate(zip(extra, [*VECTORS, VECTORS[0]], strict=True))]
    schema = StructType(
        [*_parse_datatype_string(f"id int, {SCHEMA}, bi double, i2 double"), StructField("n", VectorUDT())]
    )
    rows = spark.createDataFrame(table, schema).coalesce(1).cache()
    inner = stages()
    model = Pipeline(stages=[*inner[:5], Pipeline(stages=inner[5:])]).fit(rows.where("id < 6").na.fill(0.0, ["bi"]))
    model.write().overwrite().save(path)
    return path, model.transform(rows).orderBy("id").collect(), rows.columns


def column(values):
    """A column of Spark's values, whose NaN is no null."""
    null = np.array([value is None for value in values])
    if hasattr(next(value for value in values if value is not None), "toArray"):
        width = next(len(value) for value in values if value is not None)
        return Column(np.stack([np.zeros(width) if value is None else value.toArray() for value in values]), null)
    kind = type(next(value for value in values if value is not None))
    blank = "" if kind is str else kind(0)
    return Column(
        np.array([blank if value is None else value for value in values], dtype=object if kind is str else kind), null
    )


def test_columns_equal_spark_s(transformed):
    path, rows, inputs = transformed
    given = {name: column([row[name] for row in rows]) for name in inputs}
    given["f"] = Column(given["f"].values.astype(np.float32), given["f"].null)
    given["i"] = Column(given["i"].values.astype(np.int32), given["i"].null)
    pipeline = reader.read_pipeline(path, {})
    made = pipeline.transform(given)
    outputs = [name for stage in pipeline.stages for name in stage.outputs]
    assert len(outputs) == len({*outputs}) == len(rows[0]) - len(inputs)
    different = {}
    for name in outputs:
        expected, got = column([row[name] for row in rows]), made[name]
        same = expected.null.tolist() == got.null.tolist() and all(
            one is None or np.array_equal(one, other, equal_nan=not isinstance(one, str))
            for one, other in zip(expected.items(), got.items(), strict=True)
        )
        if not same:
            different[name] = (expected.items(), got.items())
    assert different == {}
