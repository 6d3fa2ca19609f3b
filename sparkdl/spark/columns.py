"""What the JVM selects and casts before a row leaves it.

Casting there is cheap and halves what is shipped. An ML vector is turned into an array there too: through Arrow a
VectorUDT travels as a struct of four fields for each row, an order of magnitude slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    NumericType,
    StringType,
)

from sparkdl.errors import InvalidInput
from sparkdl.feed.columns import Column, Columns

ROW_ID = "sparkdl row id"

_SPARK_FLOATING = {"float32": FloatType(), "float64": DoubleType()}


def prepare(frame: DataFrame, columns: Columns | Sequence[str] | None) -> tuple[DataFrame, Columns]:
    """Select and cast what a gang reads, with a row id.

    Args:
        frame: the data.
        columns: what is read of it; None for every column, as an input.

    Returns:
        The selected columns in the types in which they travel, and the columns as members know them.

    Raises:
        InvalidInput: a column is missing, or of a type that cannot become a tensor.
    """
    wanted = Columns.of(columns, frame.columns)
    if not wanted.inputs:
        raise InvalidInput("there are no input columns; expected at least one, in inputCols.")
    selected = [travelling(frame, column, wanted.floating).alias(column.name) for column in wanted]
    if wanted.row_id is None:
        selected.append(F.monotonically_increasing_id().alias(ROW_ID))
        wanted = replace(wanted, row_id=Column(ROW_ID, "int64"))
    return frame.select(*selected), wanted


def travelling(frame: DataFrame, column: Column, floating: str) -> SparkColumn:
    """A column in the type in which it travels.

    Raises:
        InvalidInput: there is no such column, or its type cannot become a tensor.
    """
    if column.name not in frame.columns:
        raise InvalidInput(f"there is no column {column.name!r}; the data has {', '.join(map(repr, frame.columns))}.")
    kind = frame.schema[column.name].dataType
    found = named(column.name)
    if isinstance(kind, VectorUDT):
        return vector_to_array(found, floating)
    wanted = _travels_as(kind, column, floating)
    if wanted is None:
        raise InvalidInput(
            f"column {column.name!r} has type {kind.simpleString()}; expected numbers, booleans, arrays of them or an "
            f"ML vector. {_advice(kind)}"
        )
    return found if wanted == kind else found.cast(wanted)


def named(name: str) -> SparkColumn:
    """The column of exactly this name, whatever is in it: dots, spaces, backticks."""
    return F.col(f"`{name.replace('`', '``')}`")


def _travels_as(kind: DataType, column: Column, floating: str) -> DataType | None:
    """The type in which a column travels; None if it cannot become a tensor."""
    if isinstance(kind, ArrayType):
        element = _travels_as(kind.elementType, column, floating)
        return None if element is None else ArrayType(element, kind.containsNull)
    if isinstance(kind, (IntegralType, BooleanType)):
        return kind
    if column.dtype is not None and not column.dtype.startswith("float"):
        # A class label or a row id: whether it is a whole number can only be told before it is made one.
        if isinstance(kind, DecimalType):
            return LongType() if kind.scale == 0 else DoubleType()
        if isinstance(kind, (FloatType, DoubleType)):
            return kind
    if isinstance(kind, (FloatType, DoubleType, DecimalType)):
        return _SPARK_FLOATING[floating]
    return None


def _advice(kind: DataType) -> str:
    if isinstance(kind, StringType):
        return "Turn strings into numbers with pyspark.ml.feature.StringIndexer or FeatureHasher."
    if isinstance(kind, NumericType):
        return "Cast it to double."
    return "Select its fields, or cast it to a number, first."
