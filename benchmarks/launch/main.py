"""From the call of a fit to its first step against TorchDistributor.run of an empty function.

Both start two workers on warm executors. Each side makes one untimed call first, since TorchDistributor leaves Python
workers without imports. sparkdl's time ends when the driver receives the event of the first step; the other's ends when
an empty function has returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame

from benchmarks.mlp import adam, small
from benchmarks.pairs import Side, environment, interleave, options, seconds, verdict
from benchmarks.session import materialised, samples, session
from sparkdl import SparkCluster, TorchRegressor
from sparkdl.telemetry.event import Event

BAR = "at least 4"
WORKERS = 2


class Launch:
    """Seconds of a fit to its first step, and of the whole fit."""

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
        estimator = TorchRegressor(model=small, optimizer=adam, numWorkers=WORKERS)
        cluster = SparkCluster(self._frame.sparkSession, WORKERS)
        cluster.gang(estimator.training(), self._frame, estimator.read_columns(), listener=listener)
        self.wholes.append(time.perf_counter() - start)
        return heard[0] - start


def nothing() -> None:
    """The empty function of TorchDistributor."""


def distributor() -> None:
    TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False).run(nothing)


def warm(call: Callable[[], float]) -> Callable[[], float]:
    """The figure of the second call."""

    def measure() -> float:
        call()
        return call()

    return measure


def main(arguments: Sequence[str] | None = None) -> None:
    args = options(__doc__, rounds=7, rows=2_000).parse_args(arguments)
    print(environment())
    with session("launch") as spark:
        launch = Launch(materialised(samples(spark, args.rows, partitions=WORKERS)))
        pairs = interleave(
            Side("TorchDistributor", warm(lambda: seconds(distributor))),
            Side("sparkdl", warm(launch.first_step)),
            rounds=args.rounds,
        )
    print(pairs.table("seconds"))
    wholes = launch.wholes[1::2][-args.rounds :]
    print(f"sparkdl, until the whole fit has returned: median {median(wholes):.4g} s")
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
