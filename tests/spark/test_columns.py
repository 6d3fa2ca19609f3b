"""Types of columns on their way from the JVM to tensors."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as T

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.columns import ROW_ID, select_columns
from tests.contracts import work

DOUBLES = T.ArrayType(T.DoubleType())
IMAGE = InputColumn("x", "uint8", (28, 28))


def frame(spark, kind, *values, name="x"):
    return spark.createDataFrame([(value,) for value in values], T.StructType([T.StructField(name, kind)]))


def type_of(spark, kind, column=InputColumn("x"), floating="float32"):  # noqa: B008 - it is frozen
    selected, _ = select_columns(frame(spark, kind), Columns((column,), floating=floating))
    return selected.schema["x"].dataType.simpleString()


@pytest.mark.parametrize(
    ("kind", "single", "double"),
    [
        (VectorUDT(), "array<double>", "array<double>"),
        (DOUBLES, "array<float>", "array<double>"),
        (T.ArrayType(T.FloatType()), "array<float>", "array<double>"),
        (T.ArrayType(DOUBLES), "array<array<float>>", "array<array<double>>"),
        (T.ArrayType(T.DecimalType(9, 2)), "array<float>", "array<double>"),
        (T.ArrayType(T.ShortType()), "array<smallint>", "array<smallint>"),
        (T.ArrayType(T.BooleanType()), "array<boolean>", "array<boolean>"),
        (T.FloatType(), "float", "double"),
        (T.DoubleType(), "float", "double"),
        (T.DecimalType(9, 2), "float", "double"),
        (T.ByteType(), "tinyint", "tinyint"),
        (T.ShortType(), "smallint", "smallint"),
        (T.IntegerType(), "int", "int"),
        (T.LongType(), "bigint", "bigint"),
        (T.BooleanType(), "boolean", "boolean"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.simpleString(),
)
def test_floats_get_dtype_of_run_and_integers_stay(spark, kind, single, double):
    assert type_of(spark, kind) == single
    assert type_of(spark, kind, floating="float64") == double


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        # A cast in the JVM would make a label of 1.5 a 1 in silence: workers check such values.
        (T.DoubleType(), InputColumn("x", "int64"), "double"),
        (T.FloatType(), InputColumn("x", "int64"), "float"),
        (T.DoubleType(), InputColumn("x", "bool"), "double"),
        (T.DoubleType(), InputColumn("x", "float64"), "float"),
        (T.DecimalType(18, 0), InputColumn("x", "int64"), "bigint"),
        (T.DecimalType(9, 2), InputColumn("x", "int64"), "double"),
        (T.LongType(), InputColumn("x", "float32"), "bigint"),
        (T.BinaryType(), IMAGE, "binary"),
        (T.BinaryType(), InputColumn("x", decode=len), "binary"),
        (DOUBLES, InputColumn("x", "int64", ragged="offsets"), "array<double>"),
        (DOUBLES, InputColumn("x", ragged="padded"), "array<float>"),
        (VectorUDT(), InputColumn("x", ragged="padded"), "array<double>"),
        (VectorUDT(), InputColumn("x", "int64"), "array<double>"),
    ],
)
def test_type_of_described_column(spark, kind, column, expected):
    assert type_of(spark, kind, column) == expected


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        (T.StringType(), "x", "StringIndexer (few values) or FeatureHasher"),
        (T.ArrayType(T.StringType()), "x", "CountVectorizer"),
        (T.MapType(T.StringType(), T.DoubleType()), "x", "F.col('map')['key']"),
        (T.StructType([T.StructField("a", T.DoubleType())]), "x", "VectorAssembler"),
        (T.TimestampType(), "x", "F.unix_timestamp(column)"),
        (T.TimestampNTZType(), "x", "F.unix_timestamp(column)"),
        (T.DateType(), "x", "F.datediff(column, start)"),
        (T.ArrayType(T.DateType()), "x", "F.transform"),
        (T.DayTimeIntervalType(), "x", "F.extract"),
        (T.YearMonthIntervalType(), "x", "F.extract"),
        (T.BinaryType(), "x", 'Column(name, "uint8", shape=(28, 28))'),
        (T.NullType(), "x", "Cast it to a number"),
        (T.StringType(), InputColumn("x", decode=len), "expected binary values for its decode function. Strings"),
        (T.DoubleType(), InputColumn("x", ragged="padded"), "expected arrays, since it is ragged"),
        (T.BinaryType(), InputColumn("x", "uint8"), 'Column(name, "uint8", shape=(28, 28))'),
        (T.BinaryType(), InputColumn("x", "uint8", ragged="padded"), "expected arrays"),
        (T.StructType([T.StructField(f"field {n}", T.LongType()) for n in range(1000)]), "x", "field 1:"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value)[:20],
)
def test_other_type_raises_with_advice(spark, kind, column, message):
    with pytest.raises(InvalidInput, match="column 'x' has type") as caught:
        type_of(spark, kind, InputColumn("x") if column == "x" else column)
    assert kind.simpleString()[:100] in caught.value.message
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
    selected, _ = select_columns(frame(spark, T.DoubleType(), 0.5, name=name), Columns((InputColumn(name),)))
    assert selected.columns == [name, ROW_ID]
    assert selected.collect()[0][name] == 0.5


SCHEMA = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("dense.or sparse", VectorUDT()),
        T.StructField("doubles", DOUBLES),
        T.StructField("nested", T.ArrayType(T.ArrayType(T.IntegerType()))),
        T.StructField("price", T.DecimalType(12, 3)),
        T.StructField("flag", T.BooleanType()),
        T.StructField("byte", T.ByteType()),
        T.StructField("short", T.ShortType()),
        T.StructField("label", T.DoubleType()),
        T.StructField("other", T.StringType()),
    ]
)


def row(i: int) -> tuple[object, ...]:
    vector = Vectors.dense([i, 0.0, -0.1]) if i % 2 else Vectors.sparse(3, {0: float(i), 2: -0.1})
    nested = [[i, 1], [2, 3], [4, 5]]
    return (
        (1 << 40) - i,
        vector,
        [0.1, float(i)],
        nested,
        Decimal(i) / 8,
        i % 2 == 0,
        i - 4,
        i,
        float(i % 3),
        f"row {i}",
    )


def test_each_type_arrives_as_its_tensor(spark):
    data, index = spark.createDataFrame([row(i) for i in range(9)], SCHEMA), np.arange(9)
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


@pytest.mark.parametrize(
    ("kind", "values", "dtype", "message"),
    [
        (T.DoubleType(), (0.0, 1.5), "int64", "column 'x' has 1 values that are not whole numbers"),
        (T.DoubleType(), (0.0, None), None, "column 'x' has 1 nulls in . rows"),
        (DOUBLES, ([1.0], [1.0, 2.0]), None, "column 'x' has arrays of several lengths|has rows of shape|has rows of"),
        (DOUBLES, ([1.0], [None]), None, "column 'x' has 1 nulls"),
    ],
    ids=["not whole", "null", "ragged", "null inside"],
)
def test_invalid_values_raise_with_column(spark, kind, values, dtype, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        SparkCluster(spark, 2).gang(work.rows, frame(spark, kind, *values), Columns((InputColumn("x", dtype),)))
    assert "Traceback" not in str(caught.value)
    assert ".java" not in str(caught.value)
