"""Members of an ensemble side by side: eight on two slots against one after another, and sixteen scored against one.

Each part measures both of its sides in one run and has a bar of its own. The result is how much of its bar the worst
part takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame
from torch import nn

from benchmarks.mlp import adam, mlp
from benchmarks.pairs import Side, interleave, options, seconds
from benchmarks.parts import run_parts
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


def bagging(members: int, given: argparse.Namespace) -> Bagging:
    """An ensemble of perceptrons."""
    base = TorchRegressor(
        model=partial(network, given.width),
        optimizer=adam,
        inputCols=["features"],
        batchSize=256,
        epochs=given.epochs,
    )
    return Bagging(base=base, numModels=members)


def trained(slots: int, given: argparse.Namespace) -> float:
    """Seconds of a fit of eight members on so many executors of one core each, all of which have done it before."""
    with session("ensemble_parallel", executors=slots) as spark:
        rows = materialised(samples(spark, given.rows, partitions=2))
        _warm(bagging(1, given).getBase(), rows)
        return seconds(lambda: bagging(given.members, given).fit(rows))


def _warm(base: TorchRegressor, rows: DataFrame) -> None:
    """Have all executors load torch, and their JVMs and Python workers pack all rows once."""
    Bagging(base=base.copy({base.epochs: 1}), partitioned=True).fit(rows)


def one_by_one(given: argparse.Namespace) -> float:
    """Seconds of as many fits of the base, one after another, on one executor."""
    with session("ensemble_parallel", executors=1) as spark:
        rows, base = materialised(samples(spark, given.rows, partitions=2)), bagging(1, given).getBase()
        _warm(base, rows)
        return seconds(lambda: [base.setSeed(seed).fit(rows) for seed in range(given.members)])


def measure_training(given: argparse.Namespace) -> float:
    """Eight members on one slot, where their tasks run one after another, against the same on two."""
    pairs = interleave(
        Side(
            "fits on one" if given.fits else "one slot",
            partial(one_by_one, given) if given.fits else lambda: trained(1, given),
        ),
        Side("two slots", lambda: trained(2, given)),
        rounds=given.rounds,
        warmups=0,
    )
    print(pairs.table("seconds"))
    print(f"{given.members} members on two slots: {pairs.ratio:.3f} times faster (bar: at least {TRAINING})")
    return TRAINING / pairs.ratio


def measure_scoring(given: argparse.Namespace) -> float:
    """Rows scored by sixteen members, against one of them."""
    with session("ensemble_parallel") as spark:
        one, many = models(given.scored_width)
        rows = materialised(samples(spark, given.scored, partitions=2))
        over = Side(f"{STACKED} members", partial(written, many.transform(rows).select("label", "prediction")))
        under = Side("one", partial(written, one.transform(rows).select("label", "prediction")))
        pairs = interleave(over, under, rounds=5 * given.rounds, warmups=4)
    print(pairs.table("seconds"))
    print(f"{STACKED} members take {pairs.ratio:.3f} times the time of one (bar: at most {SCORING:g})")
    return pairs.ratio / SCORING


def models(width: int) -> tuple[TorchModel, EnsembleModel]:
    """A model, and an ensemble of such."""
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
    """Measure the parts that are asked for."""
    parser = options(__doc__, rounds=3, rows=400_000)
    parser.add_argument("--scored", type=int, default=1_000_000, help="rows that are scored (default %(default)s)")
    parser.add_argument("--members", type=int, default=MEMBERS, help="members that are trained (default %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="of hidden layers in training (default %(default)s)")
    parser.add_argument("--scored-width", type=int, default=64, help="of those that score (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="for which a member is trained (default %(default)s)")
    parser.add_argument("--fits", action="store_true", help="in place of tasks on one slot, fits of the base there")
    run_parts(parser, MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
