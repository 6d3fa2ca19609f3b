"""Two sides measured in pairs: one after the other in every round, in alternating order.

Heat, caches and neighbours then affect both sides alike. The result is the median of the ratios within the rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, stdev
from typing import Any


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: name in the table.
        measure: runs once and returns the figure, in the unit of both sides.
    """

    name: str
    measure: Callable[[], float]


@dataclass(frozen=True)
class Pairs:
    """The figures of both sides.

    Attributes:
        over: name of the numerator.
        under: name of the denominator.
        rounds: both figures of each round that counts.
        warmups: both figures of each round before, which does not count.
    """

    over: str
    under: str
    rounds: Sequence[tuple[float, float]]
    warmups: Sequence[tuple[float, float]] = ()

    @property
    def ratio(self) -> float:
        """Median of ``over / under`` over the rounds."""
        return median(over / under for over, under in self.rounds)

    @property
    def error(self) -> float:
        """Standard error of the mean of ``over / under``; NaN for one round."""
        ratios = [over / under for over, under in self.rounds]
        return stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")

    def table(self, unit: str) -> str:
        """Every round, least, most and median, as text."""
        width = max(14, len(self.over) + 2, len(self.under) + 2)
        lines = [f"{unit:<12}{self.over:>{width}}{self.under:>{width}}{'ratio':>10}"]
        named = [("warm-up", pair) for pair in self.warmups]
        named += [(f"round {number}", pair) for number, pair in enumerate(self.rounds, start=1)]
        lines += [_line(name, (*pair, pair[0] / pair[1]), width) for name, pair in named]
        columns = [*zip(*self.rounds, strict=True), [over / under for over, under in self.rounds]]
        for name, chosen in (("least", min), ("most", max), ("median", median)):
            lines.append(_line(name, [chosen(column) for column in columns], width))
        return "\n".join(lines)


def _line(name: str, figures: Sequence[float], width: int) -> str:
    over, under, ratio = figures
    return f"{name:<12}{_figure(over):>{width}}{_figure(under):>{width}}{ratio:>10.3f}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def interleave(over: Side, under: Side, *, rounds: int, warmups: int = 1) -> Pairs:
    """Measure both sides in every round, in alternating order."""
    figures = []
    for number in range(warmups + rounds):
        pair: dict[str, float] = {}
        for side in (over, under) if number % 2 == 0 else (under, over):
            pair[side.name] = side.measure()
            name = "warm-up" if number < warmups else f"round {number - warmups + 1} of {rounds}"
            print(f"{name}: {side.name} {_figure(pair[side.name])}", file=sys.stderr, flush=True)
        figures.append((pair[over.name], pair[under.name]))
    return Pairs(over.name, under.name, figures[warmups:], figures[:warmups])


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def verdict(ratio: float, bar: str) -> str:
    """The last line of a benchmark's output."""
    return f"ratio {ratio:.4g} (bar: {bar})"


def options(description: str | None, *, rounds: int, rows: int | None = None) -> argparse.ArgumentParser:
    """The common options of all benchmarks; ``rows`` only if the benchmark has data."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds that count (default %(default)s)")
    if rows is not None:
        parser.add_argument("--rows", type=int, default=rows, help="rows of the data set (default %(default)s)")
    return parser


def environment() -> str:
    """The machine and the versions."""
    cpu = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory = next((line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0 0 kB")
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyspark", "pyarrow", "sparkdl-torch"))
    return (
        f"{cpu.rpartition(': ')[2]}, {len(os.sched_getaffinity(0))} cores, {int(memory.split()[1]) >> 20} GiB, "
        f"load {os.getloadavg()[0]:.2f} at the start\nPython {platform.python_version()}, {packages}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()
