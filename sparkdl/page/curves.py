"""Charts of a run's history: one line for each measure, or for each run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from sparkdl.page.drawing import LINES, finished, short, thinned
from sparkdl.page.run_data import RunData

_ASIDE = {"epoch", "round", "member", "step", "samples", "seconds", "rows_per_second", "seed", "fold", "base", "status"}
_RESIDUALS = ("primal", "dual")


def losses(runs: Sequence[RunData]) -> go.Figure | None:
    """Losses by epoch or round, and the running loss between epochs; None where there is none."""
    figure = go.Figure()
    for run in runs:
        names = [name for name in _measured(run) if name.endswith("loss") or name == "objective"]
        for name in names:
            _line(figure, runs, run, name)
        if names and len(runs) == 1:
            _running(figure, run)
    return finished(figure, "Loss", _unit(runs), "loss")


def metrics(runs: Sequence[RunData]) -> go.Figure | None:
    """All other measures of epochs, rounds or members."""
    figure = go.Figure()
    for run in runs:
        for name in _measured(run):
            if not name.endswith("loss") and name != "objective" and not _is_residual(name):
                _line(figure, runs, run, name)
    return finished(figure, "Metrics", _unit(runs), "")


def residuals(runs: Sequence[RunData]) -> go.Figure | None:
    """ADMM's primal and dual residuals, on a logarithmic scale."""
    figure = go.Figure()
    for run in runs:
        for name in _measured(run):
            if _is_residual(name):
                _line(figure, runs, run, name)
    made = finished(figure, "Residuals of ADMM", "round", "norm")
    return None if made is None else made.update_yaxes(type="log")


def members(run: RunData) -> go.Figure | None:
    """How long each member of an ensemble trained."""
    rows = [row for row in run.history if "member" in row and isinstance(row.get("seconds"), (int, float))]
    if not rows:
        return None
    figure = go.Figure()
    figure.add_bar(
        x=[row["member"] for row in rows], y=[round(row["seconds"], 3) for row in rows], marker={"color": LINES[0]}
    )
    return finished(figure, "Members of the ensemble", "member", "seconds")


def _measured(run: RunData) -> list[str]:
    names = dict.fromkeys(name for row in run.history for name, value in row.items() if _is_number(value))
    return [name for name in names if name not in _ASIDE]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_residual(name: str) -> bool:
    return name.startswith(_RESIDUALS)


def _line(figure: go.Figure, runs: Sequence[RunData], run: RunData, name: str) -> None:
    unit = _unit([run])
    rows = thinned([row for row in run.history if _is_number(row.get(name)) and math.isfinite(row[name])])
    figure.add_scatter(
        x=[row.get(unit, index + 1) for index, row in enumerate(rows)],
        y=[short(row[name]) for row in rows],
        name=name if len(runs) == 1 else f"{run.name}: {name}",
        mode="lines+markers" if len(rows) <= 100 else "lines",
        line={"color": LINES[len(figure.data) % len(LINES)]},
    )


def _running(figure: go.Figure, run: RunData) -> None:
    told = [
        (event.clock["epoch"] + event.clock["step"] % event.payload["steps"] / event.payload["steps"], event)
        for event in run.of_kind("progress")
        if event.rank == 0 and event.clock is not None and _is_number(event.payload.get("loss"))
    ]
    told = thinned([each for each in told if math.isfinite(each[1].payload["loss"])])
    if told:
        figure.add_scatter(
            x=[round(at, 4) for at, _ in told],
            y=[short(event.payload["loss"]) for _, event in told],
            name="loss since the epoch began",
            mode="lines",
            line={"color": "#8C8C8C", "width": 1},
        )


def _unit(runs: Iterable[RunData]) -> str:
    rows = [row for run in runs for row in run.history[:1]]
    return next((name for name in ("epoch", "round", "member") for row in rows if name in row), "row")
