"""Charts of a run's time: throughput, phases, attempts; each bin of the time has its rows and its longest phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from sparkdl.report.history_charts import counted
from sparkdl.report.run_data import RunData, StepChunk
from sparkdl.report.style import PHASE_COLOURS, STARTUP, Chart, colour, is_number, labels, short, text, thinned, titled
from sparkdl.telemetry.step_timer import PHASES

MOST_RANKS = 64
"""Most ranks in a chart of ranks."""
MOST_LAYERS = 16
"""Most ranks whose throughput is drawn separately."""

_RESTART, _AGAIN = "#D55E00", "#7D7D7D"


@dataclass(frozen=True)
class TimeUnit:
    """Unit of a time axis, by name and length in seconds, chosen for short labels."""

    name: str
    seconds: float

    @classmethod
    def of(cls, seconds: float) -> TimeUnit:
        """The unit for a duration in seconds."""
        units = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
        return cls(*next((unit for unit in units if seconds >= 3 * unit[1]), units[-1]))

    def __call__(self, seconds: float) -> float:
        """Convert seconds to this unit."""
        return short(seconds / self.seconds)


def throughput(runs: Sequence[RunData]) -> Chart | None:
    """Rows per second over time, stacked by rank, or one sum per run; from the history without step events."""
    seconds = max(run.seconds for run in runs)
    figure, unit, names = go.Figure(), TimeUnit.of(seconds), labels([run.name for run in runs])
    for index, run in enumerate(runs):
        by_rank, size = rates(run)
        stacked = len(runs) == 1 and 1 < len(by_rank) <= MOST_LAYERS
        if by_rank and not stacked:
            by_rank = {0: [sum(values) for values in zip(*by_rank.values(), strict=True)]}
        for rank, values in by_rank.items():
            figure.add_scatter(
                x=[unit((place + 0.5) * size) for place in range(len(values))],
                y=[round(rate) for rate in values],
                name=f"{run.noun} {rank}" if stacked else names[index],
                mode="lines",
                line={"width": 1.5, "color": colour(len(figure.data) if stacked else index)},
                showlegend=stacked or len(runs) > 1,
                **({"stackgroup": "rows"} if stacked else {"fill": "tozeroy"} if len(runs) == 1 else {}),
            )
    if not figure.data:
        return _by_row(runs)
    if len(runs) == 1:
        _marks(figure, runs[0], unit)
    return Chart("Throughput", over_time(figure, seconds, unit, "rows/s"))


def phase_shares(runs: Sequence[RunData]) -> Chart | None:
    """Each rank's share of time by phase; for several runs, each run's mean share. None without phases."""
    run, spent = runs[0], runs[0].phases()
    if len(runs) == 1:
        ranks, note = _busiest(run, spent)
        title, bars = f"Phases by {run.noun}", [(text(run.called(rank)), spent[rank]) for rank in ranks]
    else:
        means, names = [_mean(run.phases()) for run in runs], labels([run.name for run in runs])
        title, bars, note = "Phases by run", [*zip(names, means, strict=True)], f"Mean of the {run.noun}s of each run."
    bars = [(name, seconds) for name, seconds in bars if any(seconds.values())]
    figure, startup = go.Figure(), run.report.get("startup_seconds") if len(runs) == 1 else None
    if startup:
        bars = [(name, {STARTUP: startup, **seconds}) for name, seconds in bars]
    for phase in (STARTUP, *PHASES):
        values = [seconds.get(phase, 0.0) for _, seconds in bars]
        if any(values):
            figure.add_bar(
                y=[name for name, _ in bars],
                x=[round(100 * value / sum(bar[1].values()), 2) for value, bar in zip(values, bars, strict=True)],
                customdata=[short(value) for value in values],
                hovertemplate="%{y}: %{x:.1f} %, %{customdata} s",
                name=phase,
                orientation="h",
                marker={"color": PHASE_COLOURS[phase], "line": {"width": 0}},
            )
    if not figure.data:
        return None
    in_order(titled(figure, "% of the time" if startup else "% of the time in steps", ""), len(bars))
    figure.update_layout(barmode="stack", bargap=0.15).update_xaxes(range=[0, 100])
    return Chart(title, figure, note, wide=True)


def timeline(run: RunData) -> Chart | None:
    """Each rank's dominant phase over time, with attempts as vertical lines; None without phases."""
    if not (phases := dominant(run)):
        return None
    unit, size, count = TimeUnit.of(run.seconds), width(run), len(PHASES)
    ranks, omitted = _busiest(run, phases)
    scale = [[(index + side) / count, PHASE_COLOURS[phase]] for index, phase in enumerate(PHASES) for side in (0, 1)]
    figure = go.Figure(
        go.Heatmap(
            z=[phases[rank] for rank in ranks],
            x0=unit(size / 2),
            dx=size / unit.seconds,
            y=[text(run.called(rank)) for rank in ranks],
            text=[["" if index is None else PHASES[index] for index in phases[rank]] for rank in ranks],
            hovertemplate=f"%{{y}} at %{{x:.1f}} {unit.name}: %{{text}}<extra></extra>",
            hoverongaps=False,
            colorscale=scale,
            zmin=-0.5,
            zmax=count - 0.5,
            ygap=2,
            showscale=False,
        )
    )
    for index in sorted({index for row in phases.values() for index in row if index is not None}):
        _legend(figure, PHASES[index], marker={"color": PHASE_COLOURS[PHASES[index]], "symbol": "square", "size": 10})
    _marks(figure, run, unit)
    in_order(over_time(figure, run.seconds, unit, ""), len(ranks))
    steps = "Single steps are in timeline.json, for ui.perfetto.dev." if run.state == "finished" else ""
    notes = f"The longest phase of each {run.noun} at each moment.", steps, omitted
    return Chart("Timeline", figure, " ".join(filter(None, notes)), wide=True)


def workers(run: RunData) -> Chart | None:
    """Number of workers over time; None if it never changed."""
    starts = run.of_kind("attempt")
    sizes = [event.payload["size"] for event in starts]
    if len({*sizes}) < 2:
        return None
    figure, unit = go.Figure(), TimeUnit.of(run.seconds)
    figure.add_scatter(
        x=[*(unit(run.since(event)) for event in starts), unit(run.seconds)],
        y=[*sizes, sizes[-1]],
        mode="lines+markers",
        line={"shape": "hv", "color": colour(0)},
        name="workers",
        showlegend=False,
    )
    _marks(figure, run, unit)
    over_time(figure, run.seconds, unit, "workers").update_yaxes(rangemode="tozero")
    if max(sizes) <= 10:
        figure.update_yaxes(dtick=1)
    return Chart("Workers of each attempt", figure)


def _by_row(runs: Sequence[RunData]) -> Chart | None:
    figure = go.Figure()
    for index, run in enumerate(runs):
        rows = thinned([row for row in run.history if is_number(row.get("rows_per_second")) and run.unit in row])
        if rows and run.noun != "member":
            figure.add_scatter(
                x=[row[run.unit] for row in rows],
                y=[round(row["rows_per_second"]) for row in rows],
                name=labels([run.name for run in runs])[index],
                mode="lines+markers",
                line={"color": colour(index)},
                showlegend=len(runs) > 1,
            )
    if not figure.data:
        return None
    return Chart("Throughput", counted(figure, runs, "rows/s").update_yaxes(rangemode="tozero"))


def _mean(phases: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(seconds.get(name, 0.0) for seconds in phases.values()) / (len(phases) or 1) for name in PHASES}


def _busiest(run: RunData, ranks: Collection[int]) -> tuple[list[int], str]:
    busy = {rank: sum(seconds.values()) - seconds.get("exchange", 0.0) for rank, seconds in run.phases().items()}
    note = f"The busiest {MOST_RANKS} of {len(ranks)} {run.noun}s." if len(ranks) > MOST_RANKS else ""
    return sorted(sorted(ranks, key=lambda rank: -busy.get(rank, 0.0))[:MOST_RANKS]), note


def _legend(figure: go.Figure, name: str, **style: object) -> None:
    figure.add_scatter(x=[None], y=[None], name=name, mode="lines" if "line" in style else "markers", **style)


def _marks(figure: go.Figure, run: RunData, unit: TimeUnit) -> None:
    again = [event for event in run.of_kind("begin") if event.time > run.start]
    for name, hue, events in (("restart", _RESTART, run.of_kind("restart")), ("next fit", _AGAIN, again)):
        for event in events:
            figure.add_vline(x=unit(run.since(event)), line_dash="dash", line_width=1.5, line_color=hue)
        if events:
            _legend(figure, name, line={"color": hue, "dash": "dash", "width": 1.5})


def over_time(figure: go.Figure, seconds: float, unit: TimeUnit, y: str) -> go.Figure:
    """Set the x axis to the time from the start, ``seconds`` long."""
    return titled(figure, f"{unit.name} from the start", y).update_xaxes(range=[0, unit(max(seconds, 1e-3))])


def in_order(figure: go.Figure, rows: int) -> go.Figure:
    """Order the rows from the top down and fit the height to them."""
    figure.update_layout(height=max(200, 130 + (26 if rows <= 24 else 16) * rows))
    return figure.update_yaxes(autorange="reversed", type="category", ticklabelstep=1 if rows <= 40 else 2)


BINS = 400
"""Bins of a run's time in the timeline; a bin of the throughput chart is four of them."""


def dominant(run: RunData) -> dict[int, list[int | None]]:
    """For each rank, the index of each bin's longest phase; None for a bin without phases."""
    spent: dict[int, npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros((BINS, len(PHASES))))
    for chunk in (*run.stages(), *run.step_chunks()):
        for place, share in _shares(run, chunk, width(run), BINS):
            for phase in chunk.seconds.keys() & PHASES:
                spent[chunk.rank][place, PHASES.index(phase)] += chunk.seconds[phase] * share
    return {rank: [int(row.argmax()) if row.any() else None for row in rows] for rank, rows in spent.items()}


def rates(run: RunData) -> tuple[dict[int, list[float]], float]:
    """Rows per second of each rank that used rows, by bin; and a bin's width in seconds."""
    size, count = width(run) * 4, BINS // 4
    rows: dict[int, list[float]] = defaultdict(lambda: [0.0] * count)
    for chunk in run.step_chunks():
        for place, share in _shares(run, chunk, size, count):
            rows[chunk.rank][place] += chunk.rows * share / size
    return {rank: rows[rank] for rank in sorted(rows) if any(rows[rank])}, size


def width(run: RunData) -> float:
    """Width of a timeline bin in seconds."""
    return max(run.seconds, 1e-3) / BINS


def _shares(run: RunData, chunk: StepChunk, size: float, count: int) -> Iterator[tuple[int, float]]:
    first, last = (min(max(int((time - run.start) / size), 0), count - 1) for time in (chunk.start, chunk.end))
    for place in range(first, last + 1):
        begin, end = run.start + place * size, run.start + (place + 1) * size
        yield place, max(0.0, min(end, chunk.end) - max(begin, chunk.start)) / max(chunk.end - chunk.start, 1e-9)
