"""Fits of a tiny model, timed from the call."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame

from benchmarks.mlp import adam, small
from sparkdl import SparkCluster, TorchRegressor
from sparkdl.telemetry.event import Event

WORKERS = 2


class Fits:
    """Fits on one DataFrame; ``wholes`` has the seconds of each whole fit."""

    def __init__(self, frame: DataFrame) -> None:
        self.wholes: list[float] = []
        self._frame = frame

    def first_step(self) -> float:
        """Seconds from the call until the driver receives the event of the first step."""
        heard: list[float] = []

        def listener(event: Event) -> None:
            if event.kind == "progress":
                heard.append(time.perf_counter())

        start = time.perf_counter()
        # As TorchRegressor.fit, with this listener in place of the progress bar.
        estimator = TorchRegressor(model=small, optimizer=adam, numWorkers=WORKERS, epochs=1)
        cluster = SparkCluster(self._frame.sparkSession, WORKERS)
        cluster.warm_up()
        cluster.gang(estimator.training(), self._frame, estimator.read_columns(), listener=listener)
        self.wholes.append(time.perf_counter() - start)
        return heard[0] - start

    def whole(self) -> float:
        """Seconds of a whole fit."""
        self.first_step()
        return self.wholes[-1]
