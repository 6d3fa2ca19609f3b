"""From the call of a fit to its first step against TorchDistributor.run of an empty function.

Both start a gang of two in executors whose Python workers are warm: each side is called once untimed before it is
timed, since a TorchDistributor leaves the next caller workers that have imported nothing. The one counts until the
driver hears of the first step, with data, rendezvous and optimizer behind it; the other until a function that does
nothing has returned.
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
MEMBERS = 2


class Launch:
    """A fit that is timed to its first step, and how long each took as a whole."""

    def __init__(self, frame: DataFrame) -> None:
        self.wholes: list[float] = []
        self._frame = frame

    def first_step(self) -> float:
        """Seconds from the call to the first step, as the driver hears of it."""
        heard: list[float] = []

        def listener(event: Event) -> None:
            if event.kind == "progress":
                heard.append(time.perf_counter())

        start = time.perf_counter()
        # What TorchRegressor.fit does, with this listener in place of the progress bar.
        estimator = TorchRegressor(model=small, optimizer=adam, numWorkers=MEMBERS)
        cluster = SparkCluster(self._frame.sparkSession, MEMBERS)
        cluster.gang(estimator.training(), self._frame, estimator.read_columns(), listener=listener)
        self.wholes.append(time.perf_counter() - start)
        return heard[0] - start


def nothing() -> None:
    """What TorchDistributor runs."""


def distributor() -> None:
    TorchDistributor(num_processes=MEMBERS, local_mode=False, use_gpu=False).run(nothing)


def warm(call: Callable[[], float]) -> Callable[[], float]:
    """The figure of the second of two calls."""

    def measure() -> float:
        call()
        return call()

    return measure


def main(arguments: Sequence[str] | None = None) -> None:
    given = options(__doc__, rounds=7, rows=2_000).parse_args(arguments)
    print(environment())
    with session("launch") as spark:
        launch = Launch(materialised(samples(spark, given.rows, partitions=MEMBERS)))
        pairs = interleave(
            Side("TorchDistributor", warm(lambda: seconds(distributor))),
            Side("sparkdl", warm(launch.first_step)),
            rounds=given.rounds,
        )
    print(pairs.table("seconds"))
    wholes = launch.wholes[1::2][-given.rounds :]
    print(f"sparkdl, until the whole fit has returned: median {median(wholes):.4g} s")
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
