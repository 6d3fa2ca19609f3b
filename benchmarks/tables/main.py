"""Steps of embedding tables whose rows lie on two workers.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.measurements import run_measurements
from benchmarks.pairs import options
from benchmarks.tables.steps import TableSteps
from sparkdl import LocalCluster

BAR = "at most 1"
WORKERS, SIZE, ROWS = 2, 2_000_000, 1_000  # rows of the table, and of a worker's batch, with 26 ids each
STEPS, BLOCKS = 5, 3


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


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "dense": measure_dense,
    "columns": measure_columns,
    "sparse": measure_sparse,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    run_measurements(options(__doc__, rounds=5), MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
