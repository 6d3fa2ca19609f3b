"""Fingerprints of rows, independent of order and partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.columns import Columns
from sparkdl.spark.columns import ROW_ID, VECTORS, col, select_columns

_UNHASHABLE = ("map", "variant")


def fingerprint(frame: DataFrame, columns: Columns | Sequence[str] | None = None) -> str:
    """Return the number of rows and the sum of their 64-bit hashes (xxHash); computes the rows once.

    A comparison of plans would be cheaper. But a plan's hash includes JVM addresses, which change with every driver,
    and its text omits the code of functions.

    It reads the columns of a gang; without ``columns``, all columns of a type that Spark hashes.
    """
    read = frame if columns is None else select_columns(frame, columns)[0].drop(ROW_ID)
    names = sorted(field.name for field in read.schema.fields if _hashable(field.dataType))
    hashes = read.select(row_hash({name: col(name) for name in names}).cast("decimal(20,0)").alias("hash"))
    ((rows, total),) = hashes.agg(F.count("hash"), F.sum("hash")).collect()
    return f"{rows} rows, {total or 0}"


def row_hash(values: Mapping[str, Column]) -> Column:
    """The 64-bit hash (xxHash) of a row's values and their names, whose order does not count."""
    # xxHash skips nulls and ignores names, but a fit reads columns by name.
    return F.xxhash64(*(part for name in sorted(values) for part in (F.lit(name), values[name].isNull(), values[name])))


def number_hashed(values: Column, kind: T.DataType) -> Column:
    """A column of numbers, arrays or vectors for ``row_hash``, which then does not depend on their type.

    It hashes whole numbers as bigint, booleans as 0 and 1, and as double the others and those that bigint lacks.
    """
    number = kind
    while isinstance(number, T.ArrayType):
        number = number.elementType
    if isinstance(number, T.IntegralType | T.BooleanType):
        return values.cast(kind.simpleString().replace(number.simpleString(), "bigint"))
    if isinstance(kind, T.ArrayType):
        return F.transform(values, lambda value: number_hashed(value, kind.elementType))
    if isinstance(kind, VECTORS):  # vector_to_array raises for null
        return number_hashed(F.when(values.isNotNull(), vector_to_array(values)), T.ArrayType(T.DoubleType()))
    if not isinstance(kind, T.FractionalType):
        return values
    double = values.cast("double")  # a decimal may have more digits
    wholes = [F.when(one == one.try_cast("bigint"), one.try_cast("bigint")) for one in (values, double)]
    integer = F.coalesce(*wholes)
    # xxHash hashes the fields of a struct, and skips nulls.
    return F.when(values.isNotNull(), F.struct(integer, F.when(integer.isNull(), double)))


def _hashable(kind: T.DataType) -> bool:
    if isinstance(kind, T.UserDefinedType):
        return _hashable(kind.sqlType())
    if isinstance(kind, T.ArrayType):
        return _hashable(kind.elementType)
    if isinstance(kind, T.StructType):
        return all(_hashable(field.dataType) for field in kind.fields)
    return not isinstance(kind, T.MapType) and kind.typeName() not in _UNHASHABLE
