"""A fit's feed of hashed columns of strings, and of as many columns of long integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.pairs import seconds
from sparkdl import Columns, InputColumn
from sparkdl.spark.columns import select_columns

NAMES = [f"c{number}" for number in range(26)]


def rows(session: SparkSession, count: int, *, strings: bool) -> DataFrame:
    """Persisted columns: hexadecimal digits of a hash, or its number."""
    ids = session.range(count, numPartitions=2)
    hashes = [F.pmod(F.xxhash64(F.col("id"), F.lit(name)), F.lit(1_000_000)) for name in NAMES]
    values = [F.lower(F.hex(one)) if strings else one for one in hashes]
    frame = ids.select(*(one.alias(name) for one, name in zip(values, NAMES, strict=True))).persist()
    frame.count()
    return frame


def feed_seconds(frame: DataFrame, *, hashed: bool) -> float:
    """Seconds in which the columns that a gang reads reach Python."""
    columns = Columns(tuple(InputColumn(name, "int64", hash=1_000_000 if hashed else None) for name in NAMES))
    selected, _ = select_columns(frame, columns)
    return seconds(lambda: selected.mapInArrow(counted, "rows bigint").collect())


def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count a partition's rows."""
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})
