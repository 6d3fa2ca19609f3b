"""Members of an ensemble: training eight on two slots or on one, and scoring sixteen or one.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame
from torch import nn

from benchmarks.measurements import run_measurements
from benchmarks.mlp import adam, mlp
from benchmarks.pairs import Side, interleave, options, seconds
from benchmarks.session import FEATURES, materialised, samples, session, written
from sparkdl import Bagging, EnsembleModel, TorchModel, TorchRegressor
from sparkdl.io.weights import pack

BAR = "at most 1"

TRAINING = 1.7  # times faster on two slots than on one
SCORING = 6.0  # times the time of one member

MEMBERS, STACKED = 8, 16


def network(width: int) -> nn.Sequential:
    """A perceptron with two hidden layers."""
    return mlp(FEATURES, width, width, 1)


def bagging(members: int, args: argparse.Namespace) -> Bagging:
    """A bagging ensemble of perceptrons."""
    base = TorchRegressor(
        model=partial(network, args.width),
        optimizer=adam,
        inputCols=["features"],
        batchSize=256,
        epochs=args.epochs,
    )
    return Bagging(base=base, numModels=members)


def trained(slots: int, args: argparse.Namespace) -> float:
    """Seconds of a warm fit of eight members on this many executors of one core."""
    with session("ensemble_parallel", executors=slots) as spark:
        rows = materialised(samples(spark, args.rows, partitions=2))
        _warm(bagging(1, args).getBase(), rows)
        return seconds(lambda: bagging(args.members, args).fit(rows))


def _warm(base: TorchRegressor, rows: DataFrame) -> None:
    """Let every executor import torch and pack all rows once."""
    Bagging(base=base.copy({base.epochs: 1}), partitioned=True).fit(rows)


def one_by_one(args: argparse.Namespace) -> float:
    """Seconds of as many fits of the base learner, one after another, on one executor."""
    with session("ensemble_parallel", executors=1) as spark:
        rows, base = materialised(samples(spark, args.rows, partitions=2)), bagging(1, args).getBase()
        _warm(base, rows)
        return seconds(lambda: [base.setSeed(seed).fit(rows) for seed in range(args.members)])


def measure_training(args: argparse.Namespace) -> float:
    """Fit eight members on one slot and on two."""
    pairs = interleave(
        Side(
            "fits on one" if args.fits else "one slot",
            partial(one_by_one, args) if args.fits else lambda: trained(1, args),
        ),
        Side("two slots", lambda: trained(2, args)),
        rounds=args.rounds,
        warmups=0,
    )
    print(pairs.table("seconds"))
    print(f"{args.members} members on two slots: {pairs.ratio:.3f} times faster (bar: at least {TRAINING})")
    return TRAINING / pairs.ratio


def measure_scoring(args: argparse.Namespace) -> float:
    """Score the same rows with sixteen members and with one."""
    with session("ensemble_parallel") as spark:
        one, many = models(args.scored_width)
        rows = materialised(samples(spark, args.scored, partitions=2))
        over = Side(f"{STACKED} members", partial(written, many.transform(rows).select("label", "prediction")))
        under = Side("one", partial(written, one.transform(rows).select("label", "prediction")))
        pairs = interleave(over, under, rounds=5 * args.rounds, warmups=4)
    print(pairs.table("seconds"))
    print(f"{STACKED} members take {pairs.ratio:.3f} times the time of one (bar: at most {SCORING:g})")
    return pairs.ratio / SCORING


def models(width: int) -> tuple[TorchModel, EnsembleModel]:
    """A model, and an ensemble of such models."""
    each = [
        TorchModel(factory=partial(network, width), weights=pack(network(width)), kind="regressor")
        for _ in range(STACKED)
    ]
    return each[0], EnsembleModel(each, rule="mean")


MEASURES: dict[str, Callable[[argparse.Namespace], float]] = {
    "training": measure_training,
    "scoring": measure_scoring,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    parser = options(__doc__, rounds=3, rows=400_000)
    parser.add_argument("--scored", type=int, default=1_000_000, help="rows to score (default %(default)s)")
    parser.add_argument("--members", type=int, default=MEMBERS, help="members to train (default %(default)s)")
    parser.add_argument(
        "--width", type=int, default=256, help="width of hidden layers in training (default %(default)s)"
    )
    parser.add_argument(
        "--scored-width", type=int, default=64, help="width of hidden layers in scoring (default %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each member (default %(default)s)")
    parser.add_argument(
        "--fits", action="store_true", help="compare with fits of the base learner, not with tasks on one slot"
    )
    run_measurements(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
