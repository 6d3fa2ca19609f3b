"""The feed's share of a fit's first epoch, for 400 float columns and for one array column of the same numbers.

The time is from the call to the end of the first epoch. The feed is the time before the first step, less the same time
of a fit of few rows: select, casts, shuffle, Arrow, decoding, spool and sort.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import Tensor, nn

from benchmarks.mlp import adam, mlp
from benchmarks.pairs import Side, environment, interleave, options
from benchmarks.session import materialised, session
from sparkdl import Columns, InputColumn, SparkCluster
from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard
from sparkdl.telemetry.event import Event
from sparkdl.training.loop import Training
from sparkdl.training.objective.objective import Objective

BAR = "none, reported"
WORKERS = 2
BATCH = 2048  # rows of the global batch
LABEL = InputColumn("label", "float32")


@dataclass(frozen=True)
class Network:
    """Makes a network of three linear layers.

    Attributes:
        width: numbers in a row.
        stacked: whether each number is a column.
    """

    width: int
    stacked: bool

    def __call__(self) -> nn.Module:
        layers = mlp(self.width, 64, 64, 1)
        return Stacked(layers) if self.stacked else layers


class Stacked(nn.Module):
    """A network of many inputs ``[rows]``, which it stacks."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, *columns: Tensor) -> Tensor:
        return self.layers(torch.stack(columns, 1))


@dataclass(frozen=True)
class Timed:
    """Trains, and records the start of the first step and the end of the first epoch.

    Attributes:
        training: the training.
    """

    training: Training

    def __call__(self, world: World, shard: Shard) -> tuple[float, float]:
        fed = time.time()
        self.training(world, shard)
        return fed, time.time()


@dataclass(frozen=True)
class Phases:
    """Seconds from the call until the workers run, have their rows, and end the epoch."""

    started: float
    fed: float
    trained: float


class Fits:
    """Fits of one kind of columns.

    Args:
        cluster: runs them.
        frame: the rows.
        names: the input columns.
        width: numbers in a row.
    """

    def __init__(self, cluster: SparkCluster, frame: DataFrame, names: Sequence[str], width: int) -> None:
        self._cluster, self._frame = cluster, frame
        self._few = materialised(frame.limit(8).repartition(WORKERS))
        self._columns = Columns(inputs=tuple(InputColumn(name) for name in names), target=LABEL)
        objective = Objective(Network(width, stacked=len(names) > 1), nn.MSELoss(), adam)
        self._work = Timed(Training(objective, BATCH, 1))
        self._measured: list[tuple[Phases, Phases]] = []

    def share(self) -> float:
        """The feed's share of one fit, after a fit of few rows."""
        launch, whole = self._fit(self._few), self._fit(self._frame)
        self._measured.append((launch, whole))
        return max(whole.fed - launch.fed, 0.0) / (whole.trained - launch.fed)

    def _fit(self, frame: DataFrame) -> Phases:
        started: list[float] = []

        def listen(event: Event) -> None:
            if event.kind == "started":
                started.append(event.time)

        begun = time.time()
        found = self._cluster.gang(self._work, frame, self._columns, listener=listen)
        fed, trained = (max(times) - begun for times in zip(*found, strict=True))
        return Phases(max(started) - begun, fed, trained)

    def summary(self, rounds: int) -> str:
        """Medians over the last rounds."""
        selected = median(whole.started - launch.started for launch, whole in self._measured[-rounds:])
        fed = median(whole.fed - launch.fed for launch, whole in self._measured[-rounds:])
        trained = median(whole.trained - whole.fed for _, whole in self._measured[-rounds:])
        return (
            f"select, cast and shuffle {selected:.2f} s; fetch, decode, spool and sort {fed - selected:.2f} s; "
            f"steps of the epoch {trained:.2f} s"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=5, rows=200_000)
    parser.add_argument("--columns", type=int, default=400, help="float columns (default %(default)s)")
    args = parser.parse_args(arguments)
    print(environment())
    names = [f"c{index}" for index in range(args.columns)]
    with session("wide") as spark:
        numbers = [F.rand(seed).cast("float").alias(name) for seed, name in enumerate(names)]
        label = F.rand(args.columns).cast("float").alias("label")
        columns = materialised(spark.range(0, args.rows, 1, WORKERS).select(*numbers, label))
        array = materialised(columns.select(F.array(*names).alias("features"), "label"))
        cluster = SparkCluster(spark, WORKERS)
        many, one = Fits(cluster, columns, names, len(names)), Fits(cluster, array, ["features"], len(names))
        pairs = interleave(
            Side(f"{len(names)} columns", many.share), Side("one array", one.share), rounds=args.rounds, warmups=2
        )
    print(pairs.table("feed's share"))
    print(f"{len(names)} columns: {many.summary(args.rounds)}")
    print(f"one array: {one.summary(args.rounds)}")
    print(f"share {median(over for over, _ in pairs.rounds):.2f} (bar: {BAR})")


if __name__ == "__main__":
    main()
