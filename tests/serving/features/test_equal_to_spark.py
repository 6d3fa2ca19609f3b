"""Each stage against Spark's: one saved pipeline, on one frame of edge values; and one on requests of any form."""

import json
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml import feature as spark_feature
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import _parse_datatype_string
from torch import nn

from sparkdl import TorchModel
from sparkdl.io.weights import pack
from sparkdl.serving.features import reader
from sparkdl.serving.features.column import Column
from sparkdl.serving.loading import load_predictor

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


def column(values, kind=None):
    """A column of Spark's values, whose NaN is no null."""
    return Column.of(pa.array([value.toArray() if hasattr(value, "toArray") else value for value in values], kind))


def test_columns_equal_spark_s(spark, tmp_path):
    extra = [(*row, None if row[7] is None else float(row[7]), float(row[4] or 0)) for row in [*ROWS, UNSEEN]]
    table = [(at, *row, vector) for at, (row, vector) in enumerate(zip(extra, [*VECTORS, VECTORS[0]], strict=True))]
    schema = _parse_datatype_string(f"id int, {SCHEMA}, bi double, i2 double").add("n", VectorUDT())
    frame = spark.createDataFrame(table, schema).coalesce(1).cache()
    inner = stages()
    model = Pipeline(stages=[*inner[:5], Pipeline(stages=inner[5:])]).fit(frame.where("id < 6").na.fill(0.0, ["bi"]))
    model.write().overwrite().save(str(tmp_path / "pipeline"))
    rows, inputs = model.transform(frame).orderBy("id").collect(), frame.columns
    kinds = {"f": pa.float32(), "i": pa.int32()}
    given = {name: column([row[name] for row in rows], kinds.get(name)) for name in inputs}
    pipeline = reader.read_pipeline(str(tmp_path / "pipeline"), {})
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


TYPES = "byte tinyint, i int, long bigint, large bigint, f float, d double, p decimal(12,8), b boolean, s string"
NAMES = [field.split()[0] for field in TYPES.split(", ")]
REQUESTS = [
    (1, 7, 5, 2**53 + 1, 0.1, -0.0, Decimal("1.5"), True, "7"),
    (None, None, None, 2**63 - 1, None, None, None, None, None),
    (-1, 8, 2**40, 3, 2.5, 0.0, Decimal("0.00000001"), False, "é"),
    (1, 7, 5, 2**53 + 3, 16777216.0, 1e7, Decimal(0), True, "7.0"),
    (9, 9, 9, 3, 3.0, 3.0, Decimal(9), None, "9"),
]
RECORDS = [dict(zip(NAMES, row, strict=True)) for row in REQUESTS]
LISTS = {name: [row[name] for row in RECORDS] for name in NAMES}
DTYPES = ["Int8", "Int32", "Int64", "Int64", "Float32", "Float64", "object", "boolean", "category"]
WIDE = {"i": pa.int64(), "long": pa.float64(), "large": pa.uint64(), "f": pa.float64(), "s": pa.large_string()}
FORMS = {
    "pandas": lambda rows: rows.toPandas(),
    "nullable pandas": lambda _: pd.DataFrame(LISTS, dtype=object).astype(dict(zip(NAMES, DTYPES, strict=True))),
    "Arrow in pandas": lambda rows: rows.toArrow().to_pandas(types_mapper=pd.ArrowDtype),
    "Arrow": lambda rows: rows.toArrow(),
    "Arrow of other types": lambda _: pa.table({name: pa.array(LISTS[name], WIDE.get(name)) for name in NAMES}),
    "records": lambda _: RECORDS,
    "JSON in pandas": lambda _: pd.DataFrame(json.loads(json.dumps(RECORDS, default=float))),
    "lists": lambda _: LISTS,
}


@pytest.fixture(scope="module")
def served(spark, tmp_path_factory):
    """A pipeline without Spark, rows of Spark, and Spark's predictions of them: all columns of the stages."""
    path, rows = str(tmp_path_factory.mktemp("saved") / "typed"), spark.createDataFrame(REQUESTS, TYPES).coalesce(1)
    numbers, texts, filled = NAMES[:7], [*NAMES[:7], "s"], [f"{name} filled" for name in NAMES[:7]]
    indices, hashed = [f"{name} index" for name in texts], [(NAMES, numbers), (NAMES, []), (filled, filled)]
    stages = [spark_feature.StringIndexer(inputCols=texts, outputCols=indices, **KEEP)]
    stages.append(spark_feature.Imputer(inputCols=numbers, outputCols=filled))
    for at, (names, by_text) in enumerate(hashed):
        stages.append(spark_feature.FeatureHasher(inputCols=names, categoricalCols=by_text, outputCol=f"hash {at}"))
        stages[-1].setNumFeatures(256)
    assembled = [*indices, *filled, *NAMES[:8], *(stage.getOutputCol() for stage in stages[2:])]
    stages.append(spark_feature.VectorAssembler(inputCols=assembled, outputCol="features", **KEEP))
    model = TorchModel(factory=nn.PReLU, weights=pack(nn.PReLU()), precision="fp64")
    model.columnTypes = dict(rows.dtypes)
    pipeline = PipelineModel(stages=[Pipeline(stages=stages).fit(rows.limit(4)), model])
    pipeline.save(path)
    return load_predictor(path), rows, [row["prediction"] for row in pipeline.transform(rows).collect()]


@pytest.mark.parametrize("form", FORMS)
def test_requests_of_any_form_equal_spark_s(served, form):
    pipeline, rows, expected = served
    made = pipeline.predict(FORMS[form](rows))["prediction"].to_numpy()
    assert np.stack(made).tobytes() == np.array(expected).tobytes()
