"""Overhead of rounds on Spark: an empty round, reading a shard, a large model, and two slots against one.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from torch import nn

from benchmarks.measurements import run_measurements
from benchmarks.mlp import mlp
from benchmarks.pairs import Side, interleave, options, seconds
from benchmarks.rounds_overhead.large import average, sgd
from benchmarks.rounds_overhead.works import Nothing, Read, counted, drained
from benchmarks.session import samples, session
from sparkdl import SparkCluster
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.rounds.loop import Rounds
from sparkdl.training.objective.objective import Objective

BAR = "at most 1"

FIXED = 1.5  # relative to an empty mapInArrow
READING = 1e9  # bytes per second of a task
COPIES = 3.0  # growth limit of the driver's Python and of its JVM, in models
SLOTS = 1.7  # speed-up of two slots

COLUMNS = Columns((InputColumn("features"),), InputColumn("label"))
PASSES = 3  # rounds that count


def measure_fixed(args: argparse.Namespace) -> float:
    """An empty round on two shards against a mapInArrow that drains two rows."""
    with session("rounds_overhead") as spark:
        rows = spark.range(0, 2, 1, 2)
        empty = spark.sparkContext.parallelize(range(2), 2)
        with jobs_of(spark, 1000) as jobs:
            pairs = interleave(
                Side("round", lambda: seconds(lambda: jobs.run(Nothing(), {"x": 0}))),
                Side("mapInArrow", lambda: seconds(rows.mapInArrow(drained, "rows long").collect)),
                rounds=10 * args.rounds,
                warmups=5,
            )
        bare = median(seconds(lambda: empty.mapPartitions(counted).collect()) for _ in range(10 * args.rounds))
    print(pairs.table("seconds"))
    print(f"an RDD of two rows, drained and collected: median {bare:.4g} s")
    print(f"an empty round: {pairs.ratio:.3f} of an empty mapInArrow (bar: at most {FIXED})")
    return pairs.ratio / FIXED


def measure_reading(args: argparse.Namespace) -> float:
    """Bytes per second at which a task reads its shard from the local disk."""
    speeds = []
    with session("rounds_overhead") as spark, jobs_of(spark, args.rows) as jobs:
        for number in range(args.rounds + 1):
            _, notes = jobs.run(Read(), {"x": 0})
            found = [read / took for read, took in notes]
            print(f"round {number}, GB/s:", *(f"{each / 1e9:.3g}" for each in found), file=sys.stderr, flush=True)
            speeds += found if number else []
            size = notes[0][0]
    speed = median(speeds)
    spread = f"{min(speeds) / 1e9:.3g} to {max(speeds) / 1e9:.3g}"
    print(f"reading a shard of {size / 1e6:.0f} MB: {speed / 1e9:.3g} GB/s a task ({spread}; bar: at least 1)")
    return READING / speed


def measure_large(args: argparse.Namespace) -> float:
    """Growth of the driver's processes while a large model is averaged, in models."""
    with session("rounds_overhead", mebibytes=args.mebibytes) as spark:
        limit = spark.conf.get("spark.driver.maxResultSize", "1g")
        found = average(spark, rounds=1, width=args.width)
    times = ", ".join(f"{each:.3g}" for each in found.rounds)
    print(f"{found.model / 1e6:.0f} MB over 8 shards, driver's result limit {limit}: rounds of {times} s")
    copies = [grown / found.model for grown in (found.python, found.jvm)]
    print(f"Python grew by {copies[0]:.2f} models, the driver's JVM by {copies[1]:.2f} (bar: each under {COPIES:g})")
    return max(copies) / COPIES


def measure_slots(args: argparse.Namespace) -> float:
    """A round of Parallel SGD over two shards, on one slot and on two."""
    pairs = interleave(
        Side("one slot", lambda: training(1, args.rows // 2)),
        Side("two slots", lambda: training(2, args.rows // 2)),
        rounds=args.rounds,
        warmups=0,
    )
    print(pairs.table("seconds"))
    print(f"two slots: {pairs.ratio:.3f} times faster than one (bar: at least {SLOTS})")
    return SLOTS / pairs.ratio


def training(slots: int, rows: int) -> float:
    """Median seconds of a round after the first, on this many executors."""
    times: list[float] = []

    def listener(row: dict[str, Any]) -> None:
        times.append(row["seconds"])

    objective = Objective(partial(mlp, 28, 256, 256, 1), nn.MSELoss(), sgd)
    algorithm = ParallelSGD(rounds=PASSES + 1, shard_batch_size=256)
    with session("rounds_overhead", executors=slots) as spark, jobs_of(spark, rows) as jobs:
        Rounds(algorithm, objective, listener=listener).run(jobs)
    return median(times[1:])


def jobs_of(spark: SparkSession, rows: int) -> Any:
    """A task runner with this many rows in two shards."""
    frame: DataFrame = samples(spark, rows, partitions=2)
    return SparkCluster(spark, 2).map_reduce(frame, COLUMNS, num_shards=2)


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "fixed": measure_fixed,
    "reading": measure_reading,
    "large": measure_large,
    "slots": measure_slots,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=3, rows=800_000)
    parser.add_argument("--width", type=int, default=9_985, help="width of the large model (default %(default)s)")
    parser.add_argument("--mebibytes", type=int, default=3072, help="JVM memory of its executors (default %(default)s)")
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
