"""Charts of a run's history: a line per metric, or per run."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from sparkdl.report.run_data import RunData
from sparkdl.report.style import FAINT, Chart, colour, is_number, labels, short, text, thinned, titled

MOST_METRICS = 24
"""Most charts of metrics; further metrics are omitted."""

_ASIDE = frozenset(("epoch", "round", "member", "candidate", "step", "samples", "seconds", "rows_per_second", "seed"))
_PLACES = ("base", "fold")  # position of a member in its ensemble
_RESIDUALS = ("primal", "dual")
_VALIDATED = "valid_"
_FEW = 12  # up to this many rows, the axis numbers each


def loss(runs: Sequence[RunData]) -> Chart | None:
    """Losses by epoch, round or member, for one run with the running loss between epochs; None without losses."""
    figure = _lines(runs, [name for run in runs for name in measures(run) if _is_loss(name)])
    if len(runs) == 1 and runs[0].noun == "rank":
        _running(figure, runs[0])
    return Chart("Loss", counted(figure, runs, "")) if figure.data else None


def metrics(runs: Sequence[RunData]) -> list[Chart]:
    """A chart per other metric, with its validation metric."""
    names = dict.fromkeys(name for run in runs for name in measures(run))
    others = [name for name in names if not _is_loss(name) and name not in _RESIDUALS]
    charts = []
    for stem in list(dict.fromkeys(name.removeprefix(_VALIDATED) for name in others))[:MOST_METRICS]:
        figure = _lines(runs, [stem, _VALIDATED + stem])
        title = ", ".join(name for name in (stem, _VALIDATED + stem) if name in others)
        figure.update_layout(showlegend=len(figure.data) > 1)
        charts.append(Chart(title, counted(figure, runs, "")))
    return charts


def residuals(runs: Sequence[RunData]) -> Chart | None:
    """ADMM's primal and dual residuals on a logarithmic scale; None without residuals."""
    figure = _lines(runs, _RESIDUALS)
    counted(figure, runs, "norm").update_yaxes(type="log", exponentformat="e")
    note = "Primal: distance of the shards from the consensus. Dual: movement of the consensus."
    return Chart("Residuals", figure, note) if figure.data else None


def members(run: RunData) -> Chart | None:
    """Training time of each ensemble member; None without an ensemble."""
    rows = [row for row in run.history if run.noun == "member" and is_number(row.get("seconds"))]
    if not rows:
        return None
    figure = go.Figure()
    figure.add_bar(
        x=[row[run.unit] for row in rows],
        y=[short(row["seconds"]) for row in rows],
        text=[text(", ".join(f"{name} {row[name]}" for name in _PLACES if row.get(name) is not None)) for row in rows],
        textposition="none",
        hovertemplate=f"{run.noun} %{{x}}: %{{y}} s %{{text}}<extra></extra>",
        marker={"color": colour(0)},
    )
    return Chart("Members of the ensemble", counted(figure, [run], "seconds"), "Training time of each member.")


def counted(figure: go.Figure, runs: Sequence[RunData], y: str) -> go.Figure:
    """Set the x axis to the runs' epochs, rounds or members."""
    figure.update_xaxes(dtick=1 if max(len(run.history) for run in runs) <= _FEW else None)
    for place, run in enumerate(runs):
        if run.best is not None:
            hue, name = FAINT if len(runs) == 1 else colour(place), f"best {run.unit}"
            figure.add_vline(x=run.best, line_dash="dot", line_color=hue, annotation={"text": name, "font_color": hue})
    return titled(figure, ", ".join(dict.fromkeys(run.unit for run in runs if run.history)) or "epoch", y)


def measures(run: RunData) -> list[str]:
    """Names of the history's metrics, in its order."""
    if run.unit == "trial":  # a search has charts of its own
        return []
    names = dict.fromkeys(name for row in run.history for name, value in row.items() if is_number(value))
    return [name for name in names if name not in _ASIDE and name not in _PLACES]


def _is_loss(name: str) -> bool:
    return name.endswith("loss") or name == "objective"


def _lines(runs: Sequence[RunData], names: Sequence[str]) -> go.Figure:
    figure, several = go.Figure(), len(runs) > 1
    for place, run in enumerate(runs):
        label = labels([run.name for run in runs])[place]
        for name in dict.fromkeys(names):
            _line(figure, run, name, label=f"{label}: " if several else "", place=place if several else None)
    return figure


def _line(figure: go.Figure, run: RunData, name: str, *, label: str, place: int | None) -> None:
    rows = thinned([(index, row) for index, row in enumerate(run.history, start=1) if is_number(row.get(name))])
    if not rows:
        return
    points, validated = run.noun == "member", name.startswith(_VALIDATED)
    # With several runs, each run has one colour, and validation metrics are dashed.
    dash = {"dash": "dash"} if place is not None and validated else {}
    figure.add_scatter(
        x=[row.get(run.unit, index) for index, row in rows],
        y=[short(row[name]) for _, row in rows],
        name=label + text(name),
        mode="markers" if points else "lines+markers" if len(rows) <= 50 else "lines",
        line={"color": colour(len(figure.data) if place is None else place), **dash},
        marker={"size": 8 if points else 5, "symbol": "circle-open" if validated else "circle"},
    )


def _running(figure: go.Figure, run: RunData) -> None:
    points: list[tuple[float | None, float | None]] = []
    attempt: int | None = None
    for event in run.of_kind("progress"):
        if event.rank != 0 or event.clock is None or not is_number(event.payload.get("loss")):
            continue
        if attempt not in (None, event.attempt):
            points.append((None, None))
        points.append((short(event.clock["step"] / event.payload["steps"]), short(event.payload["loss"])))
        attempt = event.attempt
    if len(points) > 1 + len(run.history):  # else epochs have almost no points between them
        points = thinned(points)
        figure.add_scatter(
            x=[at for at, _ in points],
            y=[value for _, value in points],
            name="running loss of rank 0",
            mode="lines",
            line={"color": FAINT, "width": 1},
        )
