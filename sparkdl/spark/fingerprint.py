"""What tells two sets of rows apart, in whatever order and partitions they come."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.data.columns import Columns
from sparkdl.spark.columns import ROW_ID, named, prepare


def fingerprint(frame: DataFrame, columns: Columns | Sequence[str] | None = None) -> str:
    """The number of rows, and the sum of their 64-bit hashes (xxHash), of what a gang reads; the data is computed once.

    A plan would be cheaper to compare. But the hash of one holds addresses of the JVM and differs from one driver to
    the next, and its text does not tell what a function in it does.

    Args:
        frame: the data.
        columns: what is read of it; None for every column.

    Raises:
        InvalidInput: a column is missing, or of a type that cannot become a tensor.
    """
    read = prepare(frame, columns)[0].drop(ROW_ID)
    hashes = read.select(F.xxhash64(*map(named, read.columns)).cast("decimal(20,0)").alias("hash"))
    ((rows, total),) = hashes.agg(F.count("hash"), F.sum("hash")).collect()
    return f"{rows} rows, {total or 0}"
