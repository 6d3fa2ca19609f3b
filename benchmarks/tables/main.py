"""Steps of embedding tables whose rows lie on two workers, memory, scoring, and hashed columns.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.measurements import run_measurements
from benchmarks.pairs import options
from benchmarks.session import session
from benchmarks.tables.files import folder, saved, scored, worker_peak
from benchmarks.tables.hashing import feed_seconds, rows
from benchmarks.tables.steps import TableSteps
from sparkdl import LocalCluster

BAR = "at most 1"
WORKERS, SIZE, ROWS = 2, 2_000_000, 1_000  # rows of the table, and of a worker's batch, with 26 ids each
STEPS, BLOCKS = 5, 3
SMALL, LARGE = 15_625, 15_625_000  # rows of tables of 1 MB and of 1 GB


def seconds(cluster: LocalCluster, kind: str) -> float:
    """Seconds of a step, the median of the blocks."""
    return median(cluster.gang(TableSteps(kind, SIZE, ROWS, STEPS, BLOCKS))[0])


def compared(args: argparse.Namespace, over: str, under: str) -> float:
    """The median ratio of the seconds of two kinds of steps, whose order alternates."""
    ratios = []
    with LocalCluster(WORKERS, threads=1) as cluster:
        for number in range(args.rounds):
            kinds = (over, under) if number % 2 else (under, over)
            figures = {kind: seconds(cluster, kind) for kind in kinds}
            ratios.append(figures[over] / figures[under])
            print(f"round {number + 1}: {over} {figures[over]:.4f} s, {under} {figures[under]:.4f} s", flush=True)
    return median(ratios)


def measure_dense(args: argparse.Namespace) -> float:
    """How much faster a step of a table is than a dense all-reduce of its gradient alone."""
    ratio = compared(args, "dense", "table")
    print(f"a step of a table: {ratio:.2f} times faster than the dense all-reduce (bar: at least 2)")
    return 2 / ratio


def measure_columns(args: argparse.Namespace) -> float:
    """A step of 26 tables against a step of one table of the same rows."""
    ratio = compared(args, "tables", "table")
    print(f"26 tables: {ratio:.2f} of one table (bar: at most 3)")
    return ratio / 3


def measure_sparse(args: argparse.Namespace) -> float:
    """A step of a table against a step of a sparse embedding that each worker holds whole."""
    ratio = compared(args, "table", "embedding")
    print(f"a table: {ratio:.2f} of a sparse embedding under AllReduce (bar: at most 1.3)")
    return ratio / 1.3


def measure_memory(args: argparse.Namespace) -> float:
    """Peak anonymous memory of a worker with half of a table of 1 GB, above the same fit with a table of 1 MB."""
    peaks = []
    for size in (SMALL, LARGE):
        with folder() as path:
            peaks.append(worker_peak(size, path))
    gigabytes = (peaks[1] - peaks[0]) / 1e9
    print(f"memory of a worker: {gigabytes:.3f} GB above {peaks[0] / 1e9:.3f} GB (bar: at most 0.58)")
    return gigabytes / 0.58


def measure_scoring(args: argparse.Namespace) -> float:
    """Anonymous memory of scoring with a mapped table of 1 GB above one of 1 MB, and its speed against memory."""
    ratios, above = [], []
    with folder() as path:
        large, small = saved(LARGE, path), saved(SMALL, path)
        for number in range(args.rounds):
            mapped, in_memory = scored(large, LARGE, mapped=True), scored(large, LARGE, mapped=False)
            ratios.append(mapped[0] / in_memory[0])
            above.append((mapped[1] - scored(small, SMALL, mapped=True)[1]) / 1e9)
            print(f"round {number + 1}: {mapped[0]:.0f} rows/s mapped, {in_memory[0]:.0f} rows/s in memory", flush=True)
    print(f"scoring: {median(ratios):.3f} of the rows/s in memory (bar: at least 0.8)")
    print(f"scoring: {median(above):.3f} GB of anonymous memory above a table of 1 MB (bar: at most 0.1)")
    return max(0.8 / median(ratios), median(above) / 0.1)


def measure_hashing(args: argparse.Namespace) -> float:
    """A feed of 26 hashed columns of strings against one of 26 columns of long integers."""
    ratios = []
    with session("sparkdl-benchmark-hashing") as spark:
        frames = [rows(spark, 1_000_000, strings=strings) for strings in (True, False)]
        for number in range(args.rounds + 2):  # the first two warm the JVM up
            hashed, longs = (feed_seconds(one, hashed=one is frames[0]) for one in frames)
            print(f"round {number}: hashed {hashed:.2f} s, long integers {longs:.2f} s", flush=True)
            ratios.append(hashed / longs)
    print(f"hashing: {median(ratios[2:]):.2f} of the seconds of long integers (bar: at most 1.6)")
    return median(ratios[2:]) / 1.6


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "dense": measure_dense,
    "columns": measure_columns,
    "sparse": measure_sparse,
    "memory": measure_memory,
    "scoring": measure_scoring,
    "hashing": measure_hashing,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    run_measurements(options(__doc__, rounds=5), MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
