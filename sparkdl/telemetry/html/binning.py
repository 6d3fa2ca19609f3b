"""Binning of a run's time: each rank's phase and rows per bin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sparkdl.telemetry.html.run_data import RunData, StepChunk
from sparkdl.telemetry.step_timer import PHASES

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
