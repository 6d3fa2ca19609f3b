"""Charts of where the time of a run went: rows a second, phases, attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from sparkdl.page.drawing import LINES, PHASE_COLOURS, finished
from sparkdl.page.run_data import Lap, RunData
from sparkdl.phases import PHASES

BINS = 400
"""Pieces that the time of a run is cut into."""
MOST_RANKS = 64
"""Ranks in a chart of ranks."""


def throughput(runs: Sequence[RunData]) -> go.Figure | None:
    """Rows a second over the time of the run, of each rank on top of the others; of several runs the sums."""
    figure = go.Figure()
    for index, run in enumerate(runs):
        rates, width = _rates(run)
        if not rates:
            continue
        apart = len(runs) == 1 and len(rates) <= 16
        shown = rates if apart else {0: [sum(each) for each in zip(*rates.values(), strict=True)]}
        for rank, each in shown.items():
            figure.add_scatter(
                x=[round((place + 0.5) * width, 3) for place in range(len(each))],
                y=[round(rate) for rate in each],
                name=f"rank {rank}" if apart else run.name,
                mode="lines",
                line={"width": 1.5, "color": LINES[(rank if apart else index) % len(LINES)]},
                **({"stackgroup": "rows"} if apart else {}),
            )
    return finished(figure, "Throughput", "seconds from the start", "rows/s")


def phase_shares(runs: Sequence[RunData]) -> go.Figure | None:
    """Which share of its time each rank has spent in each phase."""
    figure, bars = go.Figure(), []
    for run in runs:
        hosts = run.hosts()
        for rank, seconds in sorted(run.phases().items())[:MOST_RANKS]:
            host = f" ({hosts[rank]})" if hosts.get(rank) else ""
            bars.append((f"rank {rank}{host}" if len(runs) == 1 else f"{run.name}, rank {rank}", seconds))
    for phase in PHASES:
        values = [seconds.get(phase, 0.0) for _, seconds in bars]
        if any(values):
            totals = [sum(seconds.values()) or 1.0 for _, seconds in bars]
            figure.add_bar(
                y=[name for name, _ in bars],
                x=[round(100 * value / total, 2) for value, total in zip(values, totals, strict=True)],
                customdata=[round(value, 3) for value in values],
                hovertemplate="%{y}: %{x:.1f} %, %{customdata} s",
                name=phase,
                orientation="h",
                marker={"color": PHASE_COLOURS[phase]},
            )
    figure.update_layout(barmode="stack", height=max(240, 130 + 26 * len(bars)))
    made = finished(figure, "Phases by rank", "% of the time", "")
    return None if made is None else made.update_yaxes(autorange="reversed").update_xaxes(range=[0, 100])


def timeline(run: RunData) -> go.Figure | None:
    """The phase that each rank spends most of each moment in; restarts as lines across."""
    found = dominant(run)
    if not found:
        return None
    hosts, width, count = run.hosts(), _width(run), len(PHASES)
    ranks = sorted(found)[:MOST_RANKS]
    scale = [[(index + side) / count, PHASE_COLOURS[phase]] for index, phase in enumerate(PHASES) for side in (0, 1)]
    figure = go.Figure(
        go.Heatmap(
            z=[found[rank] for rank in ranks],
            x0=width / 2,
            dx=width,
            y=[f"rank {rank}" + (f" ({hosts[rank]})" if hosts.get(rank) else "") for rank in ranks],
            text=[[PHASES[each] if each is not None else "" for each in found[rank]] for rank in ranks],
            hovertemplate="%{y} at %{x:.1f} s: %{text}<extra></extra>",
            colorscale=scale,
            zmin=-0.5,
            zmax=count - 0.5,
            ygap=2,
            showscale=False,
        )
    )
    used = {each for row in found.values() for each in row if each is not None}
    for index in sorted(used):
        marker = {"color": PHASE_COLOURS[PHASES[index]], "symbol": "square", "size": 10}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=PHASES[index], marker=marker)
    for event in run.of_kind("restart"):
        figure.add_vline(x=event.time - run.start, line_dash="dash", line_color="#D55E00")
    figure.update_layout(height=max(240, 140 + 26 * len(ranks)))
    made = finished(figure, "Timeline", "seconds from the start", "")
    return None if made is None else made.update_yaxes(autorange="reversed")


def workers(run: RunData) -> go.Figure | None:
    """Members over time, where there were restarts or another size."""
    starts = run.of_kind("attempt")
    if len(starts) < 2:
        return None
    figure = go.Figure()
    figure.add_scatter(
        x=[round(event.time - run.start, 3) for event in starts] + [round(run.end - run.start, 3)],
        y=[event.payload["size"] for event in starts] + [starts[-1].payload["size"]],
        mode="lines+markers",
        line={"shape": "hv", "color": LINES[0]},
        name="members",
        showlegend=False,
    )
    made = finished(figure, "Members of each attempt", "seconds from the start", "members")
    return None if made is None else made.update_yaxes(rangemode="tozero")


def dominant(run: RunData) -> dict[int, list[int | None]]:
    """For each rank and each piece of the time the index of the phase it was in longest; None where it was in none."""
    width = _width(run)
    spent: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for lap in (*run.stages(), *run.laps()):
        for place, share in _shares(run, lap, width, BINS):
            for phase, seconds in lap.seconds.items():
                if phase in PHASE_COLOURS:
                    spent[lap.rank][place][phase] += seconds * share
    found: dict[int, list[int | None]] = {}
    for rank, places in spent.items():
        row: list[int | None] = [None] * BINS
        for place, phases in places.items():
            if any(phases.values()):
                row[place] = PHASES.index(max(phases.items(), key=lambda each: each[1])[0])
        found[rank] = row
    return found


def _rates(run: RunData) -> tuple[dict[int, list[float]], float]:
    width, count = _width(run) * 4, BINS // 4
    rates: dict[int, list[float]] = defaultdict(lambda: [0.0] * count)
    for lap in run.laps():
        for place, share in _shares(run, lap, width, count):
            rates[lap.rank][place] += lap.rows * share / width
    return {rank: rates[rank] for rank in sorted(rates)}, width


def _width(run: RunData) -> float:
    """Seconds of a piece of the time."""
    return max(run.end - run.start, 1e-3) / BINS


def _shares(run: RunData, lap: Lap, width: float, count: int) -> Iterator[tuple[int, float]]:
    """The pieces of the time that some steps lie in, and how much of the steps lies in each."""
    first, last = (min(max(int((time - run.start) / width), 0), count - 1) for time in (lap.start, lap.end))
    whole = max(lap.end - lap.start, 1e-9)
    for place in range(first, last + 1):
        begin, end = run.start + place * width, run.start + (place + 1) * width
        yield place, max(0.0, min(end, lap.end) - max(begin, lap.start)) / whole
