"""A scorer as a Spark UDF or a stage with GPUs, the columns that it adds, and predictions of data of this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.resource import ResourceProfile
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType

from sparkdl.data.columns import is_list
from sparkdl.errors import InvalidInput
from sparkdl.ml.broadcast import BroadcastScorer, ModelBroadcast
from sparkdl.serving.features.conversion import read_array
from sparkdl.serving.scorer import Scorer
from sparkdl.spark.columns import col, transport_cast
from sparkdl.spark.slots.task_resources import TaskResources

_SCORED = "sparkdl outputs"
_VECTORS = ("raw", "probability")
_ROW = "sparkdl row"


def with_outputs(
    dataset: DataFrame, scorer: Scorer, broadcast: ModelBroadcast, names: Mapping[str, str], classes: int | None = None
) -> DataFrame:
    """Add a scorer's output columns to the rows.

    ``names`` are those of the output columns by the scorer's, and "" omits a column. ``classes`` is the length of the
    vectors, for their metadata; nested arrays stay arrays. Raises ``InvalidInput`` if an input column is missing, or
    its type cannot become a tensor.
    """
    inputs = [transport_cast(dataset, column, scorer.columns.floating) for column in scorer.columns.inputs]
    spark, returned = dataset.sparkSession, _spark_type(scorer)
    profile = gpu_profile(spark, scorer.device)
    arrow = profile is not None or hasattr(F, "arrow_udf")
    if not arrow:
        kinds = [field.dataType for field in dataset.select(*inputs).schema]
        inputs += [_absent(column, kind) for column, kind in zip(inputs, kinds, strict=True)]
    shipped, struct, fields = broadcast.ship(scorer, spark), col(_SCORED), returned.names
    if profile is None:
        scored = dataset.withColumn(_SCORED, make_udf(shipped)(*inputs))
    else:
        scored = with_scores(dataset, inputs, shipped, (_SCORED, _plain(returned)), profile)
    columns = {name: struct if len(fields) == 1 else struct.getField(name) for name in fields}
    if not arrow:
        columns = {name: _numbers(column, returned[name].dataType) for name, column in columns.items()}
    vectors = [name for name in _VECTORS if name in columns and not _is_nested(returned[name].dataType)]
    columns |= {name: array_to_vector(columns[name]) for name in vectors}
    size = {} if classes is None else {"metadata": {"ml_attr": {"num_attrs": classes}}}
    outputs = [columns[name].alias(names[name], **(size if name in vectors else {})) for name in fields if names[name]]
    return scored.select("*", *outputs).drop(_SCORED)


def gpu_profile(spark: SparkSession, device: str) -> ResourceProfile | None:
    """The profile of one GPU a task, if executors have GPUs that tasks do not request; else None."""
    return TaskResources.of_scoring(spark, device).profile(spark)


def with_scores(
    dataset: DataFrame,
    inputs: Sequence[Column],
    shipped: BroadcastScorer,
    scores: tuple[str, DataType],
    profile: ResourceProfile | None,
) -> DataFrame:
    """Add a column of a scorer's outputs; the stage that computes it, from shuffle to shuffle, gets the profile.

    Earlier stages keep all slots, and a UDF would run with the resources of its query's stage. Whole rows travel
    through Python, also the columns that the model does not read. ``inputs`` are the scorer's, as expressions of the
    dataset's columns. ``scores`` has the column's name and type; a single output is no struct. Without a profile, the
    stage keeps the application's.
    """
    names, kind = dataset.columns, scores[1]
    rows = dataset.select("*", *inputs)
    rows = rows.toDF(*map(str, range(len(rows.columns))))  # a dataset may have two columns of a name
    schema = StructType([*rows.schema.fields[: len(names)], StructField(str(len(names)), kind)])
    scorer = RowScorer(shipped, len(inputs), isinstance(kind, StructType))
    return rows.mapInArrow(scorer, schema, profile=profile).toDF(*names, scores[0])


@dataclass(frozen=True)
class RowScorer:
    """Scores batches of rows, whose last ``inputs`` columns are the scorer's; the outputs replace these."""

    shipped: BroadcastScorer
    inputs: int
    struct: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the other columns and the outputs for each batch."""
        others: deque[list[pa.Array]] = deque()  # a GPU's scorer reads batches ahead, in a thread

        def arrays() -> Iterator[tuple[pa.Array, ...]]:
            for batch in batches:
                others.append(batch.columns[: -self.inputs])
                yield tuple(batch.columns[-self.inputs :])

        for scored in self.shipped.scores(arrays()):
            columns = [*others.popleft(), scored if self.struct else scored.field(0)]
            yield pa.RecordBatch.from_arrays(columns, [*map(str, range(len(columns)))])


def make_udf(shipped: BroadcastScorer) -> Any:
    """Make a UDF that returns a struct of the output columns, or the prediction if it is the only one.

    Without Arrow UDFs its arguments are the inputs, then a boolean per input: whether the value is or holds a null.
    """
    returned = _spark_type(shipped.scorer)
    if hasattr(F, "arrow_udf"):  # from pyspark 4.1 on

        def score(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            for scored in shipped.scores(batches):
                yield scored if len(returned) > 1 else scored.field(0)

        # Spark reads the function's annotations, which are strings in this module.
        score.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
        return F.arrow_udf(score, _plain(returned))
    return _make_pandas_udf(shipped, returned)


def _spark_type(scorer: Scorer) -> StructType:
    kind = from_arrow_type(scorer.returned())
    assert isinstance(kind, StructType)
    return kind


def _absent(column: Column, kind: DataType) -> Column:
    """Whether a value is or holds a null, which pandas does not distinguish from NaN."""
    if isinstance(kind, ArrayType):
        return column.isNull() | F.exists(column, lambda value: _absent(value, kind.elementType))
    return column.isNull()


def _numbers(column: Column, kind: DataType) -> Column:
    """Turn nulls back into NaN: pandas makes nulls of NaN, and outputs have no nulls."""
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda value: _numbers(value, kind.elementType))
    return F.coalesce(column, F.lit(float("nan")).cast(kind)) if isinstance(kind, (FloatType, DoubleType)) else column


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType)


def _nullable(kind: DataType) -> DataType:
    return ArrayType(_nullable(kind.elementType), True) if isinstance(kind, ArrayType) else kind


def _make_pandas_udf(shipped: BroadcastScorer, returned: StructType) -> Any:
    """The UDF for pyspark 4.0, which has no Arrow UDFs."""
    from pyspark.sql import pandas as spark_pandas

    kind: Any = pd.DataFrame if len(returned) > 1 else pd.Series

    def arrays(batch: tuple[pd.Series, ...]) -> tuple[pa.Array, ...]:
        values, absent = batch[: len(batch) // 2], batch[len(batch) // 2 :]
        # pandas shows nulls as NaN. A batch with nulls raises; in any other, NaN must not become a null.
        return tuple(pa.array(one, from_pandas=bool(null.any())) for one, null in zip(values, absent, strict=True))

    def score(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[Any]:
        for scored in shipped.scores(map(arrays, batches)):
            table = pa.Table.from_struct_array(scored).to_pandas()
            yield table if len(returned) > 1 else table.iloc[:, 0]

    score.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[kind]}
    make: Any = spark_pandas.functions.pandas_udf
    # Spark takes every value from pandas as nullable.
    fields = [StructField(field.name, _nullable(field.dataType), True) for field in returned]
    return make(score, _plain(StructType(fields)))


def _plain(returned: StructType) -> DataType:
    return returned if len(returned) > 1 else returned[0].dataType


def predict_on_spark(
    data: Any, transform: Callable[[DataFrame], DataFrame], outputs: Sequence[str | None]
) -> pd.DataFrame | pa.Table:
    """Transform a pandas DataFrame, a pyarrow Table, or a mapping of columns by the active Spark session.

    Lists of real numbers become vectors. Of ``outputs``, it returns those that ``transform`` adds. Raises
    ``InvalidInput`` if the data has no named columns.
    """
    arrow = isinstance(data, (pa.Table, pa.RecordBatch))
    if not arrow and not isinstance(data, (pd.DataFrame, Mapping)):
        raise InvalidInput(f"the data is a {type(data).__name__}; expected a DataFrame, a Table or a mapping.")
    names = data.schema.names if arrow else [*data]
    columns = {str(name): read_array(data[name], str(name), nan_is_null=False) for name in names}
    rows = pa.table({**columns, _ROW: range(max(map(len, columns.values()), default=0))})
    lists = {name: array.type for name, array in columns.items() if is_list(array.type)}
    real = [name for name, kind in lists.items() if pa.types.is_floating(kind.value_type)]
    vectors = {name: array_to_vector(col(name).cast("array<double>")) for name in real}
    scored = transform(SparkSession.active().createDataFrame(rows).withColumns(vectors))
    vector = {name: scored.schema[name].dataType == VectorUDT() for name in outputs if name in scored.columns}
    chosen = [(vector_to_array(col(name)) if vector[name] else col(name)).alias(name) for name in vector if name]
    table = scored.select(_ROW, *chosen).toArrow().sort_by(_ROW).drop_columns(_ROW)
    if arrow:
        return table
    return table.to_pandas().set_axis(data.index if isinstance(data, pd.DataFrame) else range(len(table)))
