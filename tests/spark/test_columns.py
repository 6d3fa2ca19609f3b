"""Types of columns on their way from the JVM to tensors, fingerprints of rows, and exact sums."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.columns import ROW_ID, select_columns
from sparkdl.spark.exact_sums import exact_sums, sums_by
from sparkdl.spark.fingerprint import fingerprint
from tests import sessions
from tests.contracts import work

IMAGE = InputColumn("x", "uint8", (28, 28))
LABEL, PADDED, DECODED = InputColumn("x", "int64"), InputColumn("x", ragged="padded"), InputColumn("x", decode=len)
PLAIN = InputColumn("x")
ADVICE = 'Column(name, "uint8", shape=(28, 28))'


def frame(spark, kind, *values, name="x"):
    """A column of a type, by its name in SQL; an ML vector is ``vector``, one of pyspark.mllib ``old vector``."""
    vectors = {"vector": VectorUDT, "old vector": OldVectorUDT}
    kind = vectors[kind]() if kind in vectors else T._parse_datatype_string(kind)
    return spark.createDataFrame([(value,) for value in values], T.StructType([T.StructField(name, kind)]))


def type_of(spark, kind, column=PLAIN, floating="float32"):
    selected, _ = select_columns(frame(spark, kind), Columns((column,), floating=floating))
    return selected.schema["x"].dataType.simpleString()


@pytest.mark.parametrize("kind", ["{}", "array<{}>", "array<array<{}>>"])
def test_floats_get_dtype_of_run_and_integers_keep_their_type(spark, kind):
    for floating, name in (("float32", "float"), ("float64", "double")):
        for number in ("float", "double", "decimal(9,2)"):
            assert type_of(spark, kind.format(number), floating=floating) == kind.format(name)
        for number in ("tinyint", "smallint", "int", "bigint", "boolean"):
            assert type_of(spark, kind.format(number), floating=floating) == kind.format(number)


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        # A cast in the JVM would make a label of 1.5 a 1 in silence: workers check such values.
        ("double", LABEL, "double"),
        ("float", LABEL, "float"),
        ("double", InputColumn("x", "bool"), "double"),
        ("double", InputColumn("x", "float64"), "float"),
        ("decimal(18,0)", LABEL, "bigint"),
        ("decimal(9,2)", LABEL, "double"),
        ("bigint", InputColumn("x", "float32"), "bigint"),
        ("binary", IMAGE, "binary"),
        ("binary", DECODED, "binary"),
        ("array<double>", InputColumn("x", "int64", ragged="offsets"), "array<double>"),
        ("array<double>", PADDED, "array<float>"),
        ("vector", PLAIN, "array<double>"),
        ("vector", PADDED, "array<double>"),
        ("vector", LABEL, "array<double>"),
        ("old vector", PADDED, "array<double>"),
    ],
)
def test_type_of_described_column(spark, kind, column, expected):
    assert type_of(spark, kind, column) == expected


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("string", PLAIN, "StringIndexer (few values) or FeatureHasher"),
        ("array<string>", PLAIN, "CountVectorizer"),
        ("map<string,double>", PLAIN, "F.col('map')['key']"),
        ("struct<a:double>", PLAIN, "VectorAssembler"),
        ("timestamp", PLAIN, "F.unix_timestamp(column)"),
        ("date", PLAIN, "F.datediff(column, start)"),
        ("array<date>", PLAIN, "F.transform"),
        ("interval day to second", PLAIN, "F.extract"),
        ("interval year to month", PLAIN, "F.extract"),
        ("binary", PLAIN, ADVICE),
        ("void", PLAIN, "Cast it to a number"),
        ("string", DECODED, "expected binary values for its decode function. Strings"),
        ("double", PADDED, "expected arrays, since it is ragged"),
        ("binary", InputColumn("x", "uint8"), ADVICE),
        ("binary", InputColumn("x", "uint8", ragged="padded"), "expected arrays"),
        (f"struct<{','.join(f'field{n}:bigint' for n in range(1000))}>", PLAIN, "field1:"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_other_type_raises_with_advice(spark, kind, column, message):
    with pytest.raises(InvalidInput, match="column 'x' has type") as caught:
        type_of(spark, kind, column)
    assert kind[:100] in caught.value.message
    assert message in caught.value.message
    assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["z"], "there is no column 'z'; the data has 'c0', .*'c19' and 980 more"),
        (Columns((InputColumn("c1"),), weight=InputColumn("w")), "there is no column 'w'"),
        ([], "no input columns"),
    ],
)
def test_missing_columns_raise(spark, columns, message):
    wide = spark.createDataFrame([], T.StructType([T.StructField(f"c{index}", T.LongType()) for index in range(1000)]))
    with pytest.raises(InvalidInput, match=message):
        select_columns(wide, columns)


def test_needed_columns_travel_once(spark):
    data = spark.range(1).toDF("a").selectExpr("a", "a as b", "a as c")
    selected, columns = select_columns(
        data, Columns((InputColumn("b"), InputColumn("b")), target=InputColumn("b"), row_id=InputColumn("a"))
    )
    assert selected.columns == ["b", "a"]
    assert columns.row_id == InputColumn("a")


def test_rows_without_ids_are_numbered(spark):
    selected, columns = select_columns(spark.range(0, 8, 1, 4).toDF("a"), None)
    assert selected.columns == ["a", ROW_ID]
    assert columns.row_id == InputColumn(ROW_ID, "int64")
    numbered = {row[ROW_ID]: row["a"] for row in selected.collect()}
    assert [numbered[number] for number in sorted(numbered)] == list(range(8))


@pytest.mark.parametrize("name", ["a.b", "a b", "a.b.c d", "größe", "a`b", "x[0]", "select"])
def test_any_name(spark, name):
    selected, _ = select_columns(frame(spark, "double", 0.5, name=name), Columns((InputColumn(name),)))
    assert selected.columns == [name, ROW_ID]
    assert selected.collect()[0][name] == 0.5


@pytest.mark.parametrize(("kind", "make"), [("vector", Vectors), ("old vector", OldVectors)])
def test_null_vector_becomes_null_array(spark, kind, make):
    selected, _ = select_columns(frame(spark, kind, make.dense([1, 2]), make.sparse(2, {0: 3}), None), ["x"])
    assert [row["x"] for row in selected.collect()] == [[1, 2], [3, 0], None]


@pytest.mark.parametrize("kind", ["string", "vector", "array<bigint>"])
def test_ids_that_are_no_numbers_raise(spark, kind):
    rows, key = frame(spark, kind).withColumn("a", F.lit(1)), InputColumn("x", "int64")
    for columns in (Columns((InputColumn("a"),), row_id=key), Columns((InputColumn("a"),), client=key)):
        with pytest.raises(InvalidInput, match=r"the id column 'x' has type .*; expected integers, such as F.xxhash64"):
            select_columns(rows, columns)


SCHEMA = (
    "id bigint, doubles array<double>, nested array<array<int>>, price decimal(12,3), flag boolean, byte tinyint, "
    "short smallint, label double, other string"
)


def row(i: int) -> tuple[object, ...]:
    vector = Vectors.dense([i, 0.0, -0.1]) if i % 2 else Vectors.sparse(3, {0: float(i), 2: -0.1})
    nested = [[i, 1], [2, 3], [4, 5]]
    numbers = Decimal(i) / 8, i % 2 == 0, i - 4, i, float(i % 3)
    return (1 << 40) - i, [0.1, float(i)], nested, *numbers, f"row {i}", vector


def test_each_type_arrives_as_its_tensor(spark):
    schema = T._parse_datatype_string(SCHEMA).add("dense.or sparse", VectorUDT())
    data, index = spark.createDataFrame([row(i) for i in range(9)], schema), np.arange(9)
    expected = {
        "id": (1 << 40) - index,
        "dense.or sparse": np.stack([index, 0 * index, 0 * index - 0.1], 1).astype(np.float32),
        "doubles": np.stack([0 * index + 0.1, index], 1).astype(np.float32),
        "nested": np.stack([[[i, 1], [2, 3], [4, 5]] for i in index]).astype(np.int32),
        "price": (index / 8).astype(np.float32),
        "flag": index % 2 == 0,
        "byte": (index - 4).astype(np.int8),
        "short": index.astype(np.int16),
        "label": index % 3,
    }
    inputs = tuple(InputColumn(name) for name in expected if name not in ("id", "label"))
    columns = Columns(inputs, target=InputColumn("label", "int64"), row_id=InputColumn("id"))
    shards = [shard["columns"] for shard in SparkCluster(spark, 2).gang(work.rows, data, columns)]
    assert set(shards[0]) == set(expected)
    order = np.argsort(-np.concatenate([shard["id"] for shard in shards]))
    for name, values in expected.items():
        arrived = np.concatenate([shard[name] for shard in shards])[order]
        assert arrived.dtype == values.dtype, name
        np.testing.assert_array_equal(arrived, values, err_msg=name)


def test_fingerprint_is_of_values_and_names(spark):
    data = sessions.frame({"id": np.arange(20), "one": np.linspace(0, 1, 20), "other": np.linspace(1, 2, 20)})
    result = fingerprint(data)
    assert result.startswith("20 rows, ")
    assert fingerprint(data.select("other", "id", "one").repartition(3).orderBy(F.desc("id"))) == result
    assert fingerprint(data.withColumn("m", F.array(F.create_map("id", "one")))) == result
    null, one = F.lit(None).cast("double"), F.lit(1.0)
    changed = [
        data.where("id > 0"),
        data.withColumn("one", F.col("one") + 1),
        *(data.withColumnRenamed(name, "label") for name in ("one", "other")),
        data.withColumn("one", null).withColumn("other", one),
        data.withColumn("one", one).withColumn("other", null),
    ]
    assert len({result, *map(fingerprint, changed)}) == len(changed) + 1


def test_sums_are_exact_in_any_partitions(spark):
    random = np.random.default_rng(1)
    powers = np.array([math.ldexp(2 - 2.0**-52, exponent) for exponent in range(-1074, 1023, 7)])
    values = np.r_[powers, -powers[::3], random.normal(size=300) * 10.0 ** random.integers(-320, 300, 300), -0.0]
    total = sum(map(Fraction, values.tolist()))
    missing = {"nan": math.nan, "inf": -math.inf, "none": None}
    columns = {"v": F.col("v")} | {name: F.lit(value).cast("double") for name, value in missing.items()}
    for shards in (1, 5):
        rows = sessions.frame({"v": values}).repartition(shards)
        assert sums_by(rows, F.col("v")) == {(): (total, 0)}
        expected = {"v": float(total), "nan": math.nan, "inf": math.nan, "none": 0}
        assert exact_sums(rows, columns) == pytest.approx(expected, rel=0, nan_ok=True)
