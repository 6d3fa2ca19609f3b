"""Scoring in a stage whose tasks request GPUs.

A UDF runs in its query's stage, with the resources of that stage. ``mapInArrow`` takes a resource profile, which
applies to the whole stage, from the last shuffle to the next one. The stages before that shuffle keep all slots. Whole
rows travel through Python, also the columns that the model does not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from sparkdl.ml.inference.broadcast import BroadcastScorer
from sparkdl.spark.slots.task_resources import TaskResources


def gpu_profile(spark: SparkSession, device: str) -> ResourceProfile | None:
    """The profile of one GPU a task, if the model scores on GPUs that tasks do not request; None over Spark Connect."""
    try:
        spark.sparkContext  # noqa: B018 - raises over Spark Connect
    except (AttributeError, PySparkException):
        return None
    return TaskResources.of_scoring(spark, device).profile(spark)


def with_scores(
    dataset: DataFrame,
    inputs: Sequence[Column],
    shipped: BroadcastScorer,
    scores: tuple[str, DataType],
    profile: ResourceProfile | None,
) -> DataFrame:
    """Add a column of a scorer's outputs, ``scores``; the stage that computes it gets the profile.

    ``inputs`` are the scorer's, as expressions of the dataset's columns. A single output is no struct.
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
