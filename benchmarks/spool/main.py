"""Spooling and sorting a DataFrame's partitions against only counting the rows of the same Arrow batches.

Both are jobs over the same persisted DataFrame with a gang's select, casts and shuffle. The program times collect().
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from benchmarks.pairs import Side, environment, interleave, options, seconds, verdict
from benchmarks.session import materialised, samples, session
from sparkdl import Columns, InputColumn
from sparkdl.data.spool import Spool
from sparkdl.spark.columns import select_columns

BAR = "at most 1.3"
PARTS = 2
COLUMNS = Columns(inputs=(InputColumn("features"),), target=InputColumn("label", "float32"))

Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Spooling:
    """Spool a partition as a worker does, and count its rows.

    Attributes:
        columns: of the spool.
    """

    columns: Columns

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        spool = Spool(self.columns, directory=os.environ["SPARK_LOCAL_DIRS"].split(",")[0])
        for batch in batches:
            spool.append(batch)
        tensors = spool.seal(spool.layout())
        assert self.columns.row_id is not None
        order = spool.order(tensors[self.columns.row_id.name])
        yield row(spool.rows, sort=order is not None)


def count(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Count a partition's rows."""
    yield row(sum(batch.num_rows for batch in batches), sort=False)


def row(rows: int, *, sort: bool) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"rows": [rows], "sort": [sort]})


class Jobs:
    """Both sides on one DataFrame."""

    def __init__(self, frame: DataFrame, rows: int, *, after_shuffle: bool) -> None:
        prepared, self._columns = select_columns(frame, COLUMNS)
        # Round robin, not by row id as a gang: the rows arrive unsorted.
        self._frame = prepared.repartition(PARTS)
        self._rows = rows
        if after_shuffle:
            self._frame = materialised(self._frame)

    def spool(self) -> None:
        found = self._collect(Spooling(self._columns).run)
        if not all(shard.sort for shard in found):
            raise RuntimeError("the rows arrived sorted by id; expected another order.")

    def count(self) -> None:
        self._collect(count)

    def _collect(self, function: Callable[[Batches], Iterator[pa.RecordBatch]]) -> list[Row]:
        found = self._frame.mapInArrow(function, "rows long, sort boolean").collect()
        if sum(shard.rows for shard in found) != self._rows:
            raise RuntimeError(f"{[shard.rows for shard in found]} rows arrived; expected {self._rows} in total.")
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=9, rows=2_000_000)
    parser.add_argument(
        "--after-shuffle", action="store_true", help="persist after the shuffle, which then does not count"
    )
    args = parser.parse_args(arguments)
    print(environment())
    with session("spool") as spark:
        frame = materialised(samples(spark, args.rows, partitions=PARTS))
        jobs = Jobs(frame, args.rows, after_shuffle=args.after_shuffle)
        pairs = interleave(
            Side("spool", lambda: seconds(jobs.spool)),
            Side("count", lambda: seconds(jobs.count)),
            rounds=args.rounds,
        )
    print(pairs.table("seconds"))
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
