"""Binning of a run's time: each rank's phase and rows per bin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sparkdl.telemetry.html.run_data import RunData, StepChunk
from sparkdl.telemetry.step_timer import PHASES

BINS = 400
"""Bins of a run's time in the timeline; a bin of the throughput chart is four of them."""


def dominant(run: RunData) -> dict[int, list[int | None]]:
    """For each rank, the index of each bin's longest phase; None for a bin without phases."""
    size = width(run)
    spent: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for lap in (*run.stages(), *run.laps()):
        for place, share in _shares(run, lap, size, BINS):
            for phase, seconds in lap.seconds.items():
                if phase in PHASES:
                    spent[lap.rank][place][phase] += seconds * share
    found: dict[int, list[int | None]] = {rank: [None] * BINS for rank in spent}
    for rank, places in spent.items():
        for place, phases in places.items():
            if any(phases.values()):
                found[rank][place] = PHASES.index(max(phases, key=phases.__getitem__))
    return found


def rates(run: RunData) -> tuple[dict[int, list[float]], float]:
    """Rows per second of each rank that used rows, by bin; and a bin's width in seconds."""
    size, count = width(run) * 4, BINS // 4
    found: dict[int, list[float]] = defaultdict(lambda: [0.0] * count)
    for lap in run.laps():
        for place, share in _shares(run, lap, size, count):
            found[lap.rank][place] += lap.rows * share / size
    return {rank: found[rank] for rank in sorted(found) if any(found[rank])}, size


def width(run: RunData) -> float:
    """Width of a timeline bin in seconds."""
    return max(run.seconds, 1e-3) / BINS


def _shares(run: RunData, lap: StepChunk, size: float, count: int) -> Iterator[tuple[int, float]]:
    """The bins that some steps overlap, each with its share of the steps' time."""
    first, last = (min(max(int((time - run.start) / size), 0), count - 1) for time in (lap.start, lap.end))
    whole = max(lap.end - lap.start, 1e-9)
    for place in range(first, last + 1):
        begin, end = run.start + place * size, run.start + (place + 1) * size
        yield place, max(0.0, min(end, lap.end) - max(begin, lap.start)) / whole
