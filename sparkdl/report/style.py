"""Common style of the report page's charts: colours, number of points, labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

import plotly.graph_objects as go

Point = TypeVar("Point")

MOST_NAME = 28
"""Characters of a run's name beside a chart."""
MOST_POINTS = 1_000
"""Most points of a line; longer lines are thinned evenly."""

# Okabe and Ito's colours: distinct for colour-blind readers, on light and dark backgrounds.
STARTUP = "start-up"
"""The phase of a fit in which no worker takes steps; workers do not measure it."""
PHASE_COLOURS = {
    "feed": "#E69F00",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "exchange": "#D55E00",
    "update": "#009E73",
    "validate": "#CC79A7",
    "checkpoint": "#F0E442",
    "callbacks": "#7D7D7D",
    "other": "#BDBDBD",
    STARTUP: "#8C6D5A",
}
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#B8A800")
FAINT = "#8C8C8C"


@dataclass(frozen=True)
class Chart:
    """A chart of the page, with plain text as its title and as a note below it; ``wide`` takes the full width."""

    title: str
    figure: go.Figure
    note: str = ""
    wide: bool = False


def thinned(points: Sequence[Point]) -> list[Point]:
    """Every n-th point and the last, about ``MOST_POINTS`` at most."""
    every = -(-len(points) // MOST_POINTS) or 1
    return [*points[:-1:every], *points[-1:]]


def short(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")


def is_numeric(value: Any) -> bool:
    """Whether a value is a number, not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a history value can be drawn: a finite number, not a bool."""
    return is_numeric(value) and math.isfinite(value)


def text(plain: object) -> str:
    """Escape text for plotly, which interprets tags."""
    return escape(str(plain), quote=False)


def labels(names: Sequence[str]) -> list[str]:
    """Unique, shortened and escaped run names for plotly."""
    unique: list[str] = []
    for name in names:
        first = MOST_NAME // 3
        cut = name if len(name) <= MOST_NAME else f"{name[:first]}…{name[first + 1 - MOST_NAME :]}"
        unique.append(text(cut if text(cut) not in unique else f"{cut} ({len(unique) + 1})"))
    return unique


def colour(index: int) -> str:
    """The colour of a line."""
    return LINES[index % len(LINES)]


def titled(figure: go.Figure, x: str, y: str) -> go.Figure:
    """Set the titles of the axes."""
    return figure.update_layout(xaxis_title=text(x), yaxis_title=text(y))
