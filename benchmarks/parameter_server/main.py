"""Steps of a parameter server: with pauses of workers, against AllReduce, and its messages against sockets.

Each measurement has its own bar; the result is the largest share of a bar.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.measurements import run_measurements
from benchmarks.pairs import options
from benchmarks.parameter_server.gangs import Messages, Steps
from benchmarks.step.main import MODELS
from sparkdl import AllReduce, LocalCluster, ParameterServer, Significance

BAR = "at most 1"
WIDTHS, ROWS, STEPS = (28, 64, 64, 1), 64, 150
PAUSE, OFTEN = 0.06, 0.1  # seconds, and the share of the steps that begin with them
FASTER = {
    "staleness=12": (ParameterServer(12), 1.2),
    "asynchronous": (ParameterServer(math.inf), 1.3),
    "backup=1": (ParameterServer(backup=1), 1.25),
}
"""Strategies, and how many times faster than synchronous steps they are with pauses, at least."""
THRESHOLDS = (None, 0.01, 0.1, 1.0)
SYNCHRONOUS, SOCKETS = 1.5, 1.3  # a synchronous step against AllReduce; messages against sockets


def measure_pauses(args: argparse.Namespace) -> float:
    """How much faster steps are than synchronous ones, if each of four workers pauses in a tenth of its steps."""
    sides = {"synchronous": ParameterServer(), **{name: strategy for name, (strategy, _) in FASTER.items()}}
    taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    with LocalCluster(4, threads=1) as cluster:
        for number in range(args.rounds):
            for name in [*sides] if number % 2 else [*reversed(sides)]:
                taken[name].append(cluster.gang(Steps(sides[name], WIDTHS, ROWS, STEPS, PAUSE, OFTEN))[0])
    shares = []
    for name, figures in taken.items():
        ratio = median(base / mine for (base, *_), (mine, *_) in zip(taken["synchronous"], figures, strict=True))
        second, loss, _ = (median(column) for column in zip(*figures, strict=True))
        bar = FASTER[name][1] if name in FASTER else 0
        shares.append(bar / ratio)
        print(f"{name}: {1000 * second:.1f} ms a step, {ratio:.2f} times faster (bar: {bar:g}), loss {loss:.5f}")
    return max(shares)


def measure_steps(args: argparse.Namespace) -> float:
    """A synchronous step against a step of AllReduce, without pauses; two workers."""
    shares = []
    with LocalCluster(2, threads=1) as cluster:
        for name, (widths, steps) in MODELS.items():
            ratios, sides = [], (ParameterServer(), AllReduce())
            for number in range(args.rounds):
                order = sides if number % 2 else sides[::-1]
                figures = {one: cluster.gang(Steps(one, widths, ROWS, 2 * steps))[0][0] for one in order}
                served, reduced = (figures[one] for one in sides)
                ratios.append(served / reduced)
                print(f"{name}: round {number + 1}, {served:.4f} s against {reduced:.4f} s", flush=True)
            print(f"{name}: {median(ratios):.3f} of AllReduce (bar: at most {SYNCHRONOUS})")
            shares.append(median(ratios) / SYNCHRONOUS)
    return max(shares)


def measure_messages(args: argparse.Namespace) -> float:
    """A push and a pull of 4 MB through client and service, against the same bytes by sockets."""
    with LocalCluster(2, threads=1) as cluster:
        blocks = cluster.gang(Messages(1 << 20, 2 + 2 * args.rounds, 20))[0][2:]
    ratio = median(served / bare for served, bare in blocks)
    served, bare = (median(column) for column in zip(*blocks, strict=True))
    print(f"4 MB: {1000 * served:.2f} ms against {1000 * bare:.2f} ms, {ratio:.3f} (bar: at most {SOCKETS})")
    return ratio / SOCKETS


def measure_filter(args: argparse.Namespace) -> None:
    """Bytes and loss of stale steps whose pushes leave out what is not significant; without a bar."""
    strategies = [ParameterServer(2, filter=None if one is None else Significance(one)) for one in THRESHOLDS]
    with LocalCluster(4, threads=1) as cluster:
        runs = [
            [cluster.gang(Steps(one, WIDTHS, ROWS, 4 * STEPS))[0] for one in strategies] for _ in range(args.rounds)
        ]
    for strategy, figures in zip(strategies, zip(*runs, strict=True), strict=True):
        sent = median(mine[2] / first[2] for mine, (first, *_) in zip(figures, runs, strict=True))
        losses = sorted(loss for _, loss, _ in figures)
        spread = f"{losses[0]:.4f} to {losses[-1]:.4f}"
        print(f"{strategy.filter}: {sent:.2f} of the bytes, loss {median(losses):.4f} ({spread})")


MEASURES: dict[str, Callable[[argparse.Namespace], float | None]] = {
    "pauses": measure_pauses,
    "steps": measure_steps,
    "messages": measure_messages,
    "filter": measure_filter,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line."""
    run_measurements(options(__doc__, rounds=5), MEASURES, arguments, bar=BAR)


if __name__ == "__main__":
    main()
