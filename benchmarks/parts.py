"""Benchmarks of several parts, each with a bar of its own, which come to one figure: the largest share of a bar."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from benchmarks.pairs import environment, verdict

Measures = Mapping[str, Callable[[argparse.Namespace], float]]
"""Of each part, what measures it and gives the figure as a share of the part's bar: at most 1 where it is met."""


def run_parts(
    parser: argparse.ArgumentParser, measures: Measures, arguments: Sequence[str] | None, *, bar: str
) -> None:
    """Measure the parts that the command line asks for, all where it names none, and print what came of it.

    Args:
        parser: of the benchmark's own options.
        measures: its parts, in the order in which they are measured.
        arguments: of the command line; None for those of the process.
        bar: what the last line says of it.
    """
    names = ", ".join(measures)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one or more of {names} (default all)")
    given = parser.parse_args(arguments)
    unknown = [part for part in given.parts if part not in measures]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; expected {names}")
    print(environment())
    figures = {}
    for part in given.parts or measures:
        print(flush=True)
        figures[part] = measures[part](given)
    shares = ", ".join(f"{part} {figure:.3g}" for part, figure in figures.items())
    print("\nof each bar:", shares, "- the largest counts")
    print(verdict(max(figures.values()), bar))
