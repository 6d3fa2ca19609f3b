"""A scorer as a Spark function of its input columns, and the columns that it adds to a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from sparkdl.ml.scoring import Scorer
from sparkdl.ml.shipping import Shipment, Shipped
from sparkdl.spark.columns import named, travelling

_SCORED = "sparkdl outputs"
_VECTORS = ("raw", "probability")


def with_outputs(dataset: DataFrame, scorer: Scorer, shipment: Shipment, names: Mapping[str, str]) -> DataFrame:
    """The rows, with the outputs of a scorer behind their own columns.

    Args:
        dataset: the rows.
        scorer: gives the outputs.
        shipment: by which the model travels.
        names: of the output columns, by the scorer's own names for them; "" for one that is left out.

    Raises:
        InvalidInput: an input column is missing, or of a type that cannot become a tensor.
    """
    inputs = [travelling(dataset, column, scorer.columns.floating) for column in scorer.columns.inputs]
    scoring = make_udf(shipment.ship(scorer, dataset.sparkSession))
    scored, whole, fields = dataset.withColumn(_SCORED, scoring(*inputs)), named(_SCORED), scorer.returned().names
    found = {name: whole if len(fields) == 1 else whole.getField(name) for name in fields}
    found |= {name: array_to_vector(found[name]) for name in _VECTORS if name in found}
    kept = [named(name) for name in dataset.columns]
    return scored.select(*kept, *(found[name].alias(names[name]) for name in fields if names[name]))


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
