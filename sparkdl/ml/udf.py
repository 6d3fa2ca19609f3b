"""A scorer as a Spark function of its input columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from sparkdl.ml.shipping import Shipped


def make_udf(shipped: Shipped) -> Any:
    """A Spark function that returns a struct of the output columns, or the prediction where that is the only one."""
    returned = shipped.scorer.returned()
    if hasattr(F, "arrow_udf"):

        def score(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            for scored in shipped.scores(batches):
                yield scored if len(returned) > 1 else scored.field(0)

        # Spark reads the hints of the function itself, and they are text here.
        score.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
        return F.arrow_udf(score, _plain(returned))
    return _make_pandas_udf(shipped, returned)


def _make_pandas_udf(shipped: Shipped, returned: StructType) -> Any:
    """The same for pyspark 4.0, which has no Arrow UDFs."""
    import pandas as pd
    from pyspark.sql import pandas as spark_pandas

    kind: Any = pd.DataFrame if len(returned) > 1 else pd.Series

    def score(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[Any]:
        tuples = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
        arrays = (tuple(pa.Array.from_pandas(series) for series in batch) for batch in tuples)
        for scored in shipped.scores(arrays):
            table = pa.Table.from_struct_array(scored).to_pandas()
            yield table if len(returned) > 1 else table.iloc[:, 0]

    score.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[kind]}
    make: Any = spark_pandas.functions.pandas_udf
    # What comes from pandas may always be null, as far as Spark is concerned.
    fields = [StructField(field.name, field.dataType, True) for field in returned]
    return make(score, _plain(StructType(fields)))


def _plain(returned: StructType) -> DataType:
    return returned if len(returned) > 1 else returned[0].dataType
