"""Gangs of two processes: training speed with events and without, and the delay of the first progress line."""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import harmonic_mean, median

import numpy as np
from torch import nn

from benchmarks.mlp import adam, mlp
from sparkdl import Columns, InputColumn, LocalCluster, Objective, Training
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.telemetry.log_forwarding import WorkerLogs
from sparkdl.telemetry.progress_bar import Progress

WORKERS = 2
BATCH = 256  # rows of the global batch

COLUMNS = Columns((InputColumn("x"),), InputColumn("label", "int64"))


@dataclass(frozen=True)
class Network:
    """A perceptron and the length of its training.

    Attributes:
        widths: of the layers, from inputs to outputs.
        epochs: passes over the rows; the first does not count.
    """

    widths: tuple[int, ...]
    epochs: int

    def __str__(self) -> str:
        return "-".join(map(str, self.widths))

    def data(self, rows: int) -> dict[str, np.ndarray]:
        """Random rows."""
        draw = np.random.default_rng(0)
        x = draw.normal(size=(rows, self.widths[0])).astype(np.float32)
        return {"x": x, "label": draw.integers(0, self.widths[-1], rows)}

    def training(self, epochs: int, *, measured: bool) -> Training:
        """The workers' training."""
        objective = Objective(partial(mlp, *self.widths), nn.CrossEntropyLoss(), adam)
        return Training(objective, BATCH, epochs, measured=measured)


# The first has a typical step of a network on tables; the second has the shortest possible.
NETWORKS = (Network((784, 256, 10), 12), Network((28, 64, 64, 2), 24))


class Gangs:
    """Trainings of one network on one data set.

    Args:
        cluster: runs them.
        network: the network to train.
        rows: number of rows.
    """

    def __init__(self, cluster: LocalCluster, network: Network, rows: int) -> None:
        self.events: list[int] = []
        self._cluster, self._network, self._data = cluster, network, network.data(rows)

    def on(self) -> float:
        """Rows per second of all epochs after the first, with events stored and shown as in a fit."""
        with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder, open(os.devnull, "w") as nowhere:
            views = [Progress(stream=nowhere), WorkerLogs(nowhere)]
            with EventLog(f"{folder}/events", views) as event_log:
                found = self._rate(event_log, measured=True)
            self.events.append(event_log.received)
        return found

    def off(self) -> float:
        """Rows per second without events."""
        return self._rate(None, measured=False)

    def _rate(self, listener: Callable[[Event], None] | None, *, measured: bool) -> float:
        training = self._network.training(self._network.epochs, measured=measured)
        trained = self._cluster.gang(training, self._data, COLUMNS, listener=listener)
        # Single epochs of half a second differ by a tenth; their sum differs least.
        return float(harmonic_mean([row["rows_per_second"] for row in trained[0].history[1:]]))


@dataclass
class Noting(io.StringIO):
    """A stream that records the time of its first write.

    Attributes:
        first: that time, Unix seconds; None before.
    """

    first: float | None = field(default=None)

    def __post_init__(self) -> None:
        super().__init__()

    def write(self, text: str) -> int:
        if self.first is None:
            self.first = time.time()
        return super().write(text)


def first_lines(rows: int, rounds: int) -> list[float]:
    """Seconds from the first worker's first step to the first line of the progress bar, for new gangs."""
    return [_first_line(NETWORKS[0], rows) for _ in range(rounds)]


def _first_line(network: Network, rows: int) -> float:
    stream, seen = Noting(), list[Event]()
    with (
        LocalCluster(WORKERS, threads=1) as cluster,
        EventLog(None, [Progress(stream=stream), seen.append]) as event_log,
    ):
        cluster.gang(network.training(1, measured=True), network.data(rows), COLUMNS, listener=event_log)
    assert stream.first is not None
    return stream.first - min(event.time for event in seen if event.kind == "step" and event.payload["steps"])


def spread(figures: Sequence[float], digits: int = 3) -> str:
    """Median, least and most."""
    return f"{median(figures):.{digits}g} ({min(figures):.{digits}g} to {max(figures):.{digits}g})"
