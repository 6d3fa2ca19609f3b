"""Selects and casts columns in the JVM, before Python gets a row.

Casts in the JVM are cheap and halve the transferred bytes. ML vectors become arrays there: Arrow transfers a VectorUDT
as a struct of four fields per row, an order of magnitude slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import HASHED, RAW, Columns, InputColumn, listed
from sparkdl.data.murmur3 import number_like
from sparkdl.errors import InvalidInput

ROW_ID = "sparkdl row id"
VECTORS = (VectorUDT, OldVectorUDT)

_MOST = 200  # characters of a type in a message
_VECTOR = "join them to a vector with pyspark.ml.feature.VectorAssembler"
_ADVICE = {
    ("string", "char", "varchar"): (
        "Turn strings into numbers with pyspark.ml.feature.StringIndexer (few values) or FeatureHasher (many)."
    ),
    ("date", "time", "timestamp", "timestamp_ntz"): (
        "Convert it to a number: F.unix_timestamp(column) for seconds since 1970, F.datediff(column, start) for days, "
        "or F.hour(column) and F.dayofweek(column)."
    ),
    ("interval", "daytimeinterval", "yearmonthinterval"): (
        "Convert it to a number: subtract F.unix_timestamp of its ends, or select a field of it with F.extract."
    ),
    ("struct",): f"Select its fields, as in df.select('struct.*'), and {_VECTOR}.",
    ("map",): f"Select its values, as in F.col('map')['key'], and {_VECTOR}, or hash them with FeatureHasher.",
    ("binary",): f"{RAW}, in the estimator's columns.",
}

_SPARK_FLOATING = {"float32": T.FloatType(), "float64": T.DoubleType()}


def select_columns(frame: DataFrame, columns: Columns | Sequence[str] | None) -> tuple[DataFrame, Columns]:
    """Select and cast the columns that a gang reads, with a row id; also returns them as workers get them.

    Raises:
        InvalidInput: the data is no DataFrame, a column is missing, or its type cannot become a tensor.
    """
    check_frame(frame)
    columns = Columns.of(columns, frame.columns)
    if not columns.inputs:
        raise InvalidInput("there are no input columns; expected at least one, in inputCols.")
    for column in filter(None, (columns.row_id, columns.client)):
        kind = frame.schema[column.name].dataType if column.name in frame.columns else T.LongType()
        if not isinstance(kind, T.NumericType):
            ids = "integers, such as F.xxhash64(column) makes of strings"
            raise InvalidInput(f"the id column {column.name!r} has type {_short(kind)}; expected {ids}.")
    selected = [transport_cast(frame, column, columns.floating).alias(column.name) for column in columns]
    columns.check_fractions(lambda name: isinstance(frame.schema[name].dataType, T.FractionalType))
    if columns.row_id is None:
        selected.append(F.monotonically_increasing_id().alias(ROW_ID))
        columns = replace(columns, row_id=InputColumn(ROW_ID, "int64"))
    return frame.select(*selected), columns


def check_frame(frame: object, *, bounded: bool = False) -> None:
    """Raise InvalidInput unless the data is a Spark DataFrame, which with ``bounded`` is no stream."""
    if not hasattr(frame, "mapInArrow"):
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}".removeprefix("builtins.")
        raise InvalidInput(
            f"data is of type {kind}; expected a Spark DataFrame, such as spark.createDataFrame(data) of a pandas one."
        )
    if bounded and getattr(frame, "isStreaming", False):
        raise InvalidInput(
            "data is a streaming DataFrame, which never ends; expected one that spark.read returns. A stream's query "
            "trains on each batch with writeStream.foreachBatch(lambda rows, batch: estimator.fit(rows))."
        )


def same_names(frame: DataFrame, name: str, names: Sequence[str]) -> list[str]:
    """The ``names`` that Spark does not distinguish from ``name``; by default it ignores case."""
    alike = [column for column in names if column.lower() == name.lower()]
    same = [column for column in alike if column == name]
    if len(same) == len(alike):  # without asking the JVM, for frames of many columns
        return alike
    return same if str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true" else alike


def numbered(frame: DataFrame) -> DataFrame:
    """The frame with columns c0, c1, ...: mapInArrow resolves columns by name, and takes a dot for a field."""
    return frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))


def transport_cast(frame: DataFrame, column: InputColumn, floating: str) -> SparkColumn:
    """Cast a column to its transfer type.

    Raises:
        InvalidInput: the column is missing, or its type cannot become a tensor.
    """
    if column.name not in frame.columns:
        raise InvalidInput(f"there is no column {column.name!r}; the data has {listed(frame.columns)}.")
    if len(equal := same_names(frame, column.name, frame.columns)) > 1:
        raise InvalidInput(f"there are {len(equal)} columns {column.name!r}: {listed(equal)}; drop all but one.")
    kind, values = frame.schema[column.name].dataType, col(column.name)
    if column.decode is not None and not isinstance(kind, T.BinaryType):
        raise InvalidInput(
            f"column {column.name!r} has type {_short(kind)}; expected binary values for its decode function. Strings "
            "become their UTF-8 bytes by F.encode(column, 'UTF-8')."
        )
    if column.ragged is not None and not isinstance(kind, (T.ArrayType, *VECTORS)):
        raise InvalidInput(f"column {column.name!r} has type {_short(kind)}; expected arrays, since it is ragged.")
    if column.hash is not None:
        return _hashed(kind, values, column)
    if isinstance(kind, VECTORS):
        # vector_to_array makes an object per vector, and raises for null. For dense vectors, their array is faster.
        fields = F.unwrap_udt(values)
        dense = F.when(fields.getField("type") == 1, fields.getField("values"))
        return dense.when(values.isNotNull(), vector_to_array(values))
    transfer = _travels_as(kind, column, floating)
    if transfer is None:
        raise InvalidInput(
            f"column {column.name!r} has type {_short(kind)}; expected numbers, booleans, arrays of them or an ML "
            f"vector. {_advice(kind)}"
        )
    return values if transfer == kind else values.cast(transfer)


def _hashed(kind: T.DataType, values: SparkColumn, column: InputColumn) -> SparkColumn:
    """The ids of a hashed column; ``sparkdl.data.hashed_columns`` computes the same ids without Spark."""
    element = kind.elementType if isinstance(kind, T.ArrayType) else kind
    if not isinstance(element, (T.StringType, T.IntegralType, T.BooleanType, T.DateType, T.NullType)):
        raise InvalidInput(f"column {column.name!r} has type {_short(kind)}; expected {HASHED}, since it has hash.")

    def number(value: SparkColumn) -> SparkColumn:
        # Spark's hashes of an int and of an equal bigint differ.
        exact = value.cast("bigint") if isinstance(element, (T.IntegralType, T.BooleanType)) else value
        return F.pmod(F.hash(F.lit(number_like(column.hash_as or column.name)), exact), F.lit(column.hash))

    if element is kind:
        return number(values)
    # In a ragged column, a null counts as an array of one null.
    arrays = values if column.ragged is None else F.coalesce(values, F.array(F.lit(None).cast(element)))
    return F.transform(arrays, number)


def col(name: str) -> SparkColumn:
    """The column of exactly this name, with any dots, spaces or backticks."""
    return F.col(f"`{name.replace('`', '``')}`")


def _travels_as(kind: T.DataType, column: InputColumn, floating: str) -> T.DataType | None:
    if isinstance(kind, T.ArrayType):
        element = _travels_as(kind.elementType, column, floating)
        return None if element is None else T.ArrayType(element, kind.containsNull)
    if isinstance(kind, (T.IntegralType, T.BooleanType)):
        return kind
    if isinstance(kind, T.BinaryType):
        return kind if column.decode is not None or None not in (column.dtype, column.shape) else None
    if not isinstance(kind, (T.FloatType, T.DoubleType, T.DecimalType)):
        return None
    if column.dtype is None or column.dtype.startswith("float"):
        return _SPARK_FLOATING[floating]
    # A class label or row id: a check for whole numbers needs the value before the cast.
    if not isinstance(kind, T.DecimalType):
        return kind
    return T.LongType() if kind.scale == 0 else T.DoubleType()


def _short(kind: T.DataType) -> str:
    text = kind.simpleString()
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _advice(kind: T.DataType) -> str:
    if isinstance(kind, T.ArrayType):
        if isinstance(kind.elementType, T.StringType):
            return "Turn arrays of strings into vectors with pyspark.ml.feature.CountVectorizer or HashingTF."
        return f"{_advice(kind.elementType)} F.transform does it to each element of an array."
    return next((text for kinds, text in _ADVICE.items() if kind.typeName() in kinds), "Cast it to a number first.")
