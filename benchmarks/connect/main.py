"""A session of Spark Connect against a classic session, both in one application.

A server has the classic session, and this process is its client. Each measurement has its own bar; the result is the
largest share of a bar.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.connect import measures
from benchmarks.connect.server import serving
from benchmarks.measurements import run_measurements
from benchmarks.pairs import Pairs, Side, interleave, options

BAR = "at most 1"

FIT, LONG, ROUNDS, MEMBERS = 1.6, 1.2, 4.0, 1.4  # seconds with Connect, relative to the classic session's
TRANSFORM = 0.9  # rows per second, likewise
CANCEL = 2.0  # seconds


class Sessions:
    """Both sessions, and a folder with the rows of both."""

    def __init__(self, spark: SparkSession, classic: Callable[..., float], folder: str) -> None:
        self.spark, self._classic, self._folder = spark, classic, folder

    def rows(self, count: int) -> str:
        """The path of so many rows in Parquet files."""
        path = f"{self._folder}/{count}"
        self._classic("write", path, count)
        return path

    def pairs(self, name: str, *arguments: Any, rounds: int, warmups: int = 3) -> Pairs:
        """A measure in both sessions."""
        return interleave(
            Side("Connect", lambda: getattr(measures, name)(self.spark, *arguments)),
            Side("classic", lambda: self._classic(name, *arguments)),
            rounds=rounds,
            warmups=warmups,
        )


@contextmanager
def both() -> Iterator[Sessions]:
    """A new application with both sessions."""
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        spark: Any = SparkSession.builder.remote(server.url).create()  # type: ignore[attr-defined]
        try:
            yield Sessions(spark, server.run, folder)
        finally:
            spark.stop()


def measure_fit(args: argparse.Namespace) -> float:
    """A warm fit of 40 000 rows in 3 epochs."""
    with both() as sessions:
        return _share("fit", sessions.pairs("fit", sessions.rows(args.rows), 3, rounds=args.rounds), FIT)


def measure_long(args: argparse.Namespace) -> float:
    """A warm fit of 400 000 rows in 2 epochs."""
    with both() as sessions:
        return _share("long", sessions.pairs("fit", sessions.rows(10 * args.rows), 2, rounds=args.rounds), LONG)


def measure_transform(args: argparse.Namespace) -> float:
    """Rows per second of ``transform`` of 1 M rows."""
    count = 25 * args.rows
    with both() as sessions:
        pairs = sessions.pairs("transform", sessions.rows(count), count, rounds=3 * args.rounds, warmups=6)
    print(pairs.table("rows/s"))
    print(f"transform: {pairs.ratio:.3f} of the classic session's rows/s (bar: at least {TRANSFORM})")
    return TRANSFORM / pairs.ratio


def measure_rounds(args: argparse.Namespace) -> float:
    """An empty round of two shards."""
    with both() as sessions:
        return _share("rounds", sessions.pairs("rounds", sessions.rows(1000), rounds=args.rounds), ROUNDS)


def measure_members(args: argparse.Namespace) -> float:
    """Eight members, which train in tasks, of 40 000 rows in 3 epochs."""
    with both() as sessions:
        return _share("members", sessions.pairs("members", sessions.rows(args.rows), 3, rounds=args.rounds), MEMBERS)


def measure_cancel(args: argparse.Namespace) -> float:
    """Seconds from an interrupt to the end of ``fit``, with Connect alone."""
    with both() as sessions:
        path = sessions.rows(args.rows)
        times = [measures.cancel(sessions.spark, path) for _ in range(1 + args.rounds)][1:]
    print("seconds:", *(f"{each:.3g}" for each in times))
    print(f"cancel: {median(times):.3g} s from the interrupt to the end of fit (bar: at most {CANCEL:g} s)")
    return median(times) / CANCEL


def _share(name: str, pairs: Pairs, most: float) -> float:
    print(pairs.table("seconds"))
    print(f"{name}: {pairs.ratio:.3f} times the classic session's seconds (bar: at most {most})")
    return pairs.ratio / most


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "fit": measure_fit,
    "long": measure_long,
    "transform": measure_transform,
    "rounds": measure_rounds,
    "members": measure_members,
    "cancel": measure_cancel,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=7, rows=40_000)
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
