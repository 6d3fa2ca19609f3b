"""Benchmarks of several measurements, each with its own bar; the result is the largest share of a bar."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from benchmarks.pairs import environment, verdict

Measures = Mapping[str, Callable[[argparse.Namespace], float | None]]
"""Name -> function that measures, and returns the figure as a share of its bar: at most 1 if the bar is met; None if it
has no bar."""


def run_measurements(
    parser: argparse.ArgumentParser, measures: Measures, arguments: Sequence[str] | None, *, bar: str
) -> None:
    """Run the measurements named on the command line, default all, and print the result.

    Args:
        parser: the benchmark's own options.
        measures: all measurements, in their order.
        arguments: the command line; None: the process's own.
        bar: the bar in the last line.
    """
    names = ", ".join(measures)
    parser.add_argument("names", nargs="*", metavar="MEASUREMENT", help=f"one or more of {names} (default all)")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.names if name not in measures]
    if unknown:
        parser.error(f"there is no measurement {', '.join(unknown)}; expected {names}")
    print(environment())
    figures = {}
    for name in args.names or measures:
        print(flush=True)
        if (figure := measures[name](args)) is not None:
            figures[name] = figure
    if not figures:
        print("\nno measurement has a bar")
        return
    shares = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
    print("\nof each bar:", shares, "- the largest counts")
    print(verdict(max(figures.values()), bar))
