"""How soon a fit begins: warm and in fresh applications, against TorchDistributor and empty jobs of Spark.

Both sides start two workers on two executors with one core each. sparkdl's first step counts when the driver receives
its event.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import pyarrow as pa
from pyspark.ml.torch.distributor import TorchDistributor

from benchmarks.fresh import run_fresh, seconds_fresh
from benchmarks.launch.fits import WORKERS, Fits
from benchmarks.measurements import run_measurements
from benchmarks.pairs import Pairs, Side, interleave, options, seconds
from benchmarks.session import materialised, samples, session

BAR = "at most 1"
_APPLICATIONS = "benchmarks.launch.applications:"
_OWN_DAEMON = {"spark.python.daemon.module": "pyspark.daemon"}


def nothing() -> None:
    """The empty function of TorchDistributor."""


def distributor() -> None:
    TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False).run(nothing)


def warm_fit(args: argparse.Namespace) -> float:
    """A warm fit to its first step, against ``TorchDistributor.run`` of an empty function: at least 10 times faster.

    Each side makes one untimed call first, since TorchDistributor leaves Python workers without imports.
    """
    with session("launch") as spark:
        fits = Fits(materialised(samples(spark, args.rows, partitions=WORKERS)))
        pairs = interleave(
            Side("TorchDistributor", _second(lambda: seconds(distributor))),
            Side("sparkdl", _second(fits.first_step)),
            rounds=args.rounds,
        )
    print(pairs.table("seconds"))
    print(f"sparkdl, until the whole fit has returned: median {median(fits.wholes[1::2][-args.rounds :]):.4g} s")
    return 10 / pairs.ratio


def drained_job(args: argparse.Namespace) -> float:
    """A warm fit, against a barrier job of as many tasks that reads its input and returns no rows: 0.8 s more."""
    with session("launch") as spark:
        frame = materialised(samples(spark, args.rows, partitions=WORKERS))
        job = frame.repartition(WORKERS).mapInArrow(_drain, "id long", barrier=True)
        fits = Fits(frame)
        pairs = interleave(
            Side("fit", _second(fits.whole)),
            Side("drained job", _second(lambda: seconds(job.collect))),
            rounds=args.rounds,
        )
    return _more(pairs, most=0.8)


def first_fit(args: argparse.Namespace) -> float:
    """The first fit of an application, against ``TorchDistributor.run`` of a function that imports torch: 2 times."""
    pairs = _fresh_pairs(args, "distributor", "first_fit")
    print(pairs.table("seconds"))
    return 2 / pairs.ratio


def etl(args: argparse.Namespace) -> float:
    """Ten seconds of ETL and the first fit, against that ETL and a warm fit: 3 s more."""
    return _more(_fresh_pairs(args, "etl_and_first_fit", "etl_and_warm_fit"), most=3.0)


def first_udf(args: argparse.Namespace) -> float:
    """The first Python UDF of an application that never trains, against pyspark's daemon: 3 s more."""
    for name in ("first_udf", "first_udf_beside_warm_up"):
        print(f"{name}: daemons of {run_fresh(_APPLICATIONS + name)['daemons']} MB")
    function = _APPLICATIONS + "first_udf"
    pairs = interleave(
        Side("sparkdl's daemon", partial(seconds_fresh, function)),
        Side("pyspark's daemon", partial(seconds_fresh, function, **_OWN_DAEMON)),
        rounds=args.fresh_rounds,
        warmups=0,
    )
    return _more(pairs, most=3.0)


def _fresh_pairs(args: argparse.Namespace, over: str, under: str) -> Pairs:
    sides = [Side(name, partial(seconds_fresh, _APPLICATIONS + name)) for name in (over, under)]
    return interleave(*sides, rounds=args.fresh_rounds, warmups=0)


def _more(pairs: Pairs, *, most: float) -> float:
    print(pairs.table("seconds"))
    more = median(over - under for over, under in pairs.rounds)
    print(f"{pairs.over} takes {more:.2f} s more (median of the rounds; bar: at most {most:g} s)")
    return more / most


def _second(call: Callable[[], float]) -> Callable[[], float]:
    """The figure of the second call."""

    def measure() -> float:
        call()
        return call()

    return measure


def _drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=7, rows=2_000)
    parser.add_argument(
        "--fresh-rounds", type=int, default=3, help="rounds of fresh applications (default %(default)s)"
    )
    measures = {function.__name__: function for function in (warm_fit, drained_job, first_fit, etl, first_udf)}
    run_measurements(parser, measures, arguments, bar=BAR)


if __name__ == "__main__":
    main()
