"""Charts of a hyperparameter search: the best value by trial, values by epoch, and params with their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from sparkdl.report.run_data import RunData
from sparkdl.report.style import FAINT, Chart, colour, is_number, short, text, titled

MOST_TRIALS = 200
"""Most trials with a line of their own; further ones are omitted."""
_FIGURES = ("trial", "state", "value", "epochs", "seconds")
_DECADES = 100.0  # from this ratio of the largest value to the smallest, an axis is logarithmic


def search_charts(run: RunData) -> dict[str, Chart | None]:
    """The charts of a search by name; none of them for other runs."""
    rows = [row for row in run.history if run.unit == "trial" and is_number(row.get("value"))]
    if not rows:
        return {}
    return {"best-value": _best_value(run, rows), "trial-values": _values(run), "coordinates": _coordinates(rows)}


def _best_value(run: RunData, rows: Sequence[Mapping[str, Any]]) -> Chart:
    mode = [run.report.get("mode"), *(event.payload["mode"] for event in run.of_kind("trials"))]
    better = max if "max" in mode else min
    numbers, values = [row["trial"] for row in rows], [short(row["value"]) for row in rows]
    best = [better(values[: end + 1]) for end in range(len(values))]
    figure = go.Figure()
    figure.add_scatter(x=numbers, y=values, name="value", mode="markers", marker={"color": FAINT})
    figure.add_scatter(x=numbers, y=best, name="best", mode="lines", line={"color": colour(0), "shape": "hv"})
    return Chart("Best value by trial", titled(figure, "trial", "value"), "Values at the last rung of each trial.")


def _values(run: RunData) -> Chart:
    trials = {one["number"]: one["history"] for one in run.report.get("trials", ())}
    trials |= {event.payload["trial"]: event.payload["values"] for event in run.of_kind("trial")} if not trials else {}
    figure = go.Figure()
    for number, values in list(trials.items())[:MOST_TRIALS]:
        numbers = [(epoch, short(value)) for epoch, value in enumerate(values, start=1) if is_number(value)]
        figure.add_scatter(
            x=[epoch for epoch, _ in numbers],
            y=[value for _, value in numbers],
            name=f"trial {number}",
            mode="lines+markers" if len(numbers) == 1 else "lines",
            line={"color": colour(0) if number == run.best else FAINT, "width": 2 if number == run.best else 1},
        )
    figure.update_layout(showlegend=False)
    return Chart("Value by epoch", titled(figure, "epoch", "value"), "A line for each trial; the best one is blue.")


def _coordinates(rows: Sequence[Mapping[str, Any]]) -> Chart:
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in _FIGURES]
    axes = [_axis(name, [row.get(name) for row in rows]) for name in [*names, "value"]]
    line = {"color": [row["value"] for row in rows], "colorscale": "Viridis", "showscale": False}
    figure = go.Figure(go.Parcoords(dimensions=axes, line=line))
    return Chart("Hyperparameters", figure, "A line for each trial, coloured by its value.", wide=True)


def _axis(name: str, values: Sequence[Any]) -> dict[str, Any]:
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        choices = list(dict.fromkeys(map(str, values)))
        places = [choices.index(str(value)) for value in values]
        return {"label": text(name), "values": places, "tickvals": [*range(len(choices))], "ticktext": choices}
    if min(numbers) > 0 and max(numbers) / min(numbers) >= _DECADES:
        return {"label": text(f"log10 {name}"), "values": [short(math.log10(value)) for value in numbers]}
    return {"label": text(name), "values": [short(value) for value in numbers]}
