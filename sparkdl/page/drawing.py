"""What the charts of the report page have in common: colours, how many points, titles."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

MOST_POINTS = 1_000
"""Points of a line; of more, as many are left out, evenly."""

# Okabe and Ito's colours, which people who see some colours alike can tell apart, on light and dark ground.
PHASE_COLOURS = {
    "feed": "#E69F00",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exchange": "#D55E00",
    "update": "#009E73",
    "validate": "#CC79A7",
    "checkpoint": "#F0E442",
    "hooks": "#8C8C8C",
    "other": "#B9B9B9",
}
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#B8A800")


def thinned(points: list[Any]) -> list[Any]:
    """The points, or some of them and the last one."""
    every = -(-len(points) // MOST_POINTS) or 1
    return [*points[:-1:every], *points[-1:]]


def short(value: float) -> float:
    """A number to the six digits that can be seen."""
    return float(f"{value:.6g}")


def finished(figure: go.Figure, title: str, x: str, y: str) -> go.Figure | None:
    """The figure with its titles; None where there is nothing in it."""
    if not figure.data:
        return None
    return figure.update_layout(title=title, xaxis_title=x, yaxis_title=y)
