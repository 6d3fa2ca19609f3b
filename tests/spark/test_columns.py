"""What the JVM makes of columns before they travel, and what members make of them then."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import Row
from pyspark.sql import types as T

from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.columns import ROW_ID, select_columns
from tests.contracts import work

FLOATS, DOUBLES = T.ArrayType(T.FloatType()), T.ArrayType(T.DoubleType())


def frame(spark, kind, *values, name="x"):
    return spark.createDataFrame([(value,) for value in values], T.StructType([T.StructField(name, kind)]))


def travels_as(spark, kind, *, dtype=None, floating="float32"):
    prepared, _ = select_columns(frame(spark, kind), Columns((InputColumn("x", dtype),), floating=floating))
    return prepared.schema["x"].dataType.simpleString()


@pytest.mark.parametrize(
    ("kind", "single", "double"),
    [
        (VectorUDT(), "array<double>", "array<double>"),
        (DOUBLES, "array<float>", "array<double>"),
        (FLOATS, "array<float>", "array<double>"),
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
def test_floating_point_takes_the_runs_dtype_and_integers_stay(spark, kind, single, double):
    assert travels_as(spark, kind) == single
    assert travels_as(spark, kind, floating="float64") == double


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        (T.DoubleType(), "int64", "double"),
        (T.FloatType(), "int64", "float"),
        (T.DoubleType(), "bool", "double"),
        (T.DoubleType(), "float64", "float"),
        (T.DecimalType(18, 0), "int64", "bigint"),
        (T.DecimalType(9, 2), "int64", "double"),
        (T.LongType(), "float32", "bigint"),
    ],
)
def test_what_must_be_whole_is_cast_only_where_it_has_been_looked_at(spark, kind, dtype, expected):
    """A label of 1.5 must be refused by a member: a cast on the JVM would make it 1 in silence."""
    assert travels_as(spark, kind, dtype=dtype) == expected


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (T.StringType(), "StringIndexer (few values) or FeatureHasher"),
        (T.ArrayType(T.StringType()), "CountVectorizer"),
        (T.MapType(T.StringType(), T.DoubleType()), "F.col('map')['key']"),
        (T.StructType([T.StructField("a", T.DoubleType())]), "VectorAssembler"),
        (T.TimestampType(), "F.unix_timestamp(column)"),
        (T.TimestampNTZType(), "F.unix_timestamp(column)"),
        (T.DateType(), "F.datediff(column, start)"),
        (T.ArrayType(T.DateType()), "F.transform"),
        (T.DayTimeIntervalType(), "F.extract"),
        (T.YearMonthIntervalType(), "F.extract"),
        (T.BinaryType(), 'Column(name, "uint8", shape=(28, 28))'),
        (T.NullType(), "Cast it to a number"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.typeName(),
)
def test_other_types_are_refused_with_advice(spark, kind, advice):
    with pytest.raises(InvalidInput, match="column 'x' has type") as caught:
        travels_as(spark, kind)
    assert kind.simpleString() in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        (T.StringType(), InputColumn("x", decode=len), r"has type string; expected binary values.* F\.encode"),
        (T.DoubleType(), InputColumn("x", ragged="padded"), "has type double; expected arrays, since it is ragged"),
        (T.BinaryType(), InputColumn("x", "uint8"), "has type binary; .*Say what its bytes are"),
        (T.BinaryType(), InputColumn("x", "uint8", ragged="padded"), "has type binary; expected arrays"),
    ],
)
def test_a_description_that_does_not_fit_the_type_is_refused(spark, kind, column, message):
    with pytest.raises(InvalidInput, match=f"column 'x' {message}"):
        select_columns(frame(spark, kind), Columns((column,)))


def test_a_thousand_columns_fit_a_screen(spark):
    wide = spark.createDataFrame([], T.StructType([T.StructField(f"c{index}", T.LongType()) for index in range(1000)]))
    with pytest.raises(InvalidInput, match="'c19' and 980 more"):
        select_columns(wide, ["z"])
    fields = T.StructType([T.StructField(f"field {index}", T.LongType()) for index in range(1000)])
    with pytest.raises(InvalidInput, match="column 'x' has type struct") as caught:
        travels_as(spark, fields)
    assert len(caught.value.message) < 700


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        (T.BinaryType(), InputColumn("x", "uint8", (28, 28)), "binary"),
        (T.BinaryType(), InputColumn("x", decode=len), "binary"),
        (DOUBLES, InputColumn("x", "int64", ragged="offsets"), "array<double>"),
        (DOUBLES, InputColumn("x", ragged="padded"), "array<float>"),
        (VectorUDT(), InputColumn("x", ragged="padded"), "array<double>"),
        (VectorUDT(), InputColumn("x", "int64"), "array<double>"),
    ],
)
def test_what_is_described_travels_as_it_is(spark, kind, column, expected):
    prepared, _ = select_columns(frame(spark, kind), Columns((column,)))
    assert prepared.schema["x"].dataType.simpleString() == expected


def test_missing_columns_are_named_beside_those_that_there_are(spark):
    data = spark.range(1).toDF("a")
    with pytest.raises(InvalidInput, match="there is no column 'b'; the data has 'a'"):
        select_columns(data, ["b"])
    with pytest.raises(InvalidInput, match="there is no column 'w'"):
        select_columns(data, Columns((InputColumn("a"),), weight=InputColumn("w")))
    with pytest.raises(InvalidInput, match="no input columns"):
        select_columns(data, [])


def test_only_what_is_wanted_travels_and_once(spark):
    data = spark.range(1).toDF("a").selectExpr("a", "a as b", "a as c")
    prepared, columns = select_columns(
        data, Columns((InputColumn("b"), InputColumn("b")), target=InputColumn("b"), row_id=InputColumn("a"))
    )
    assert prepared.columns == ["b", "a"]
    assert columns.row_id == InputColumn("a")


def test_rows_are_numbered_where_nobody_did(spark):
    prepared, columns = select_columns(spark.range(0, 8, 1, 4).toDF("a"), None)
    assert prepared.columns == ["a", ROW_ID]
    assert columns.row_id == InputColumn(ROW_ID, "int64")
    found = prepared.collect()
    assert len({row[ROW_ID] for row in found}) == 8
    assert [row["a"] for row in sorted(found, key=lambda row: row[ROW_ID])] == list(range(8))


@pytest.mark.parametrize("name", ["a.b", "a b", "a.b.c d", "größe", "a`b", "x[0]", "select"])
def test_any_name_will_do(spark, name):
    prepared, _ = select_columns(frame(spark, T.DoubleType(), 0.5, name=name), Columns((InputColumn(name),)))
    assert prepared.columns == [name, ROW_ID]
    assert prepared.collect()[0][name] == 0.5


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


def row(index: int) -> Row:
    values = [float(index), 0.0, -0.1]
    vector = Vectors.dense(values) if index % 2 else Vectors.sparse(3, {0: values[0], 2: values[2]})
    nested = [[index, 1], [2, 3], [4, 5]]
    return Row(
        (1 << 40) - index,
        vector,
        [0.1, float(index)],
        nested,
        Decimal(index) / 8,
        index % 2 == 0,
        index - 4,
        index,
        float(index % 3),
        f"row {index}",
    )


def test_every_kind_arrives_as_its_tensor(spark):
    data = spark.createDataFrame([row(index) for index in range(9)], SCHEMA)
    names = ["dense.or sparse", "doubles", "nested", "price", "flag", "byte", "short"]
    columns = Columns(tuple(map(InputColumn, names)), target=InputColumn("label", "int64"), row_id=InputColumn("id"))
    found = SparkCluster(spark, 2).gang(work.rows, data, columns)
    joined = {name: np.concatenate([part["columns"][name] for part in found]) for name in found[0]["columns"]}
    order = np.argsort(-joined["id"])
    arrived = {name: values[order] for name, values in joined.items()}
    index = np.arange(9)
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
    assert set(arrived) == set(expected)
    for name, values in expected.items():
        assert arrived[name].dtype == values.dtype, name
        np.testing.assert_array_equal(arrived[name], values, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "values", "dtype", "message"),
    [
        (T.DoubleType(), (0.0, 1.5), "int64", "part .: column 'x' has 1 values that are not whole numbers"),
        (T.DoubleType(), (0.0, None), None, "part .: column 'x' has 1 nulls in . rows"),
        (DOUBLES, ([1.0], [1.0, 2.0]), None, "column 'x' has arrays of several lengths|has rows of shape"),
        (DOUBLES, ([1.0], [None]), None, "column 'x' has 1 nulls"),
    ],
    ids=["not whole", "null", "ragged", "null inside"],
)
def test_values_that_cannot_be_used_are_refused_by_name(spark, kind, values, dtype, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        SparkCluster(spark, 2).gang(work.rows, frame(spark, kind, *values), Columns((InputColumn("x", dtype),)))
    assert "Traceback" not in str(caught.value)
    assert ".java" not in str(caught.value)
