"""The picture of the time to an accuracy against the bandwidth: ``python -m benchmarks.slow_links.picture IN OUT``.

``IN`` is the output of the measurements ``target`` and ``seconds``. A line is the number of steps to the target times
the seconds a step at each rate. The rate does not change the steps of a synchronous strategy. A dot is a measured time.
``OUT`` is a PNG or SVG file by its suffix.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Points = dict[str, list[tuple[float, float]]]  # strategy -> Mbit/s and seconds


def measured(lines: Iterable[Mapping[str, Any]]) -> Points:
    """The median of the measured seconds to the target, by strategy and rate."""
    found = defaultdict(list)
    for line in lines:
        if line["measurement"] == "target" and line["seconds"] is not None:
            found[line["strategy"], line["mbit"]].append(line["seconds"])
    return _points({place: median(seconds) for place, seconds in found.items()})


def computed(lines: Iterable[Mapping[str, Any]]) -> Points:
    """The steps to the target times the seconds a step, by strategy and rate."""
    steps, seconds = defaultdict(list), {}
    for line in lines:
        if line["measurement"] == "target" and line["steps"] is not None:
            steps[line["strategy"]].append(line["steps"])
        if line["measurement"] == "seconds":
            seconds[line["strategy"], line["mbit"]] = line["seconds_per_step"]
    return _points({place: median(steps[place[0]]) * each for place, each in seconds.items() if place[0] in steps})


def _points(seconds: Mapping[tuple[str, float], float]) -> Points:
    points: Points = {}
    for (strategy, mbit), each in sorted(seconds.items(), key=lambda item: item[0][1]):
        points.setdefault(strategy, []).append((mbit, each))
    return points


def draw(lines: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the picture into a file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    target = next(line["target"] for line in lines if line["measurement"] == "target")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    dots = measured(lines)
    for strategy, points in computed(lines).items():
        (line,) = axes.plot(*zip(*points, strict=True), label=strategy)
        if strategy in dots:
            axes.plot(*zip(*dots[strategy], strict=True), "o", color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="bandwidth, Mbit/s", ylabel=f"seconds to an accuracy of {target:g}")
    rates = sorted({line["mbit"] for line in lines if line["measurement"] == "seconds"})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    with mpl.rc_context({"svg.hashsalt": "sparkdl"}):  # a repeated picture has the same bytes
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description="Draw the time to an accuracy against the bandwidth.")
    parser.add_argument("figures", type=Path, help="the --output of benchmarks.slow_links.main")
    parser.add_argument("picture", type=Path, help="a PNG or SVG file")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.figures.read_text(encoding="utf-8").splitlines()]
    draw(lines, args.picture)


if __name__ == "__main__":
    main()
