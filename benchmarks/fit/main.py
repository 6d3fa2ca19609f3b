"""A whole fit on a DataFrame against TorchDistributor._train_on_dataframe with its own loader.

Both train the same network on the same persisted DataFrame in two executors for the same epochs. The time is from the
call to its return.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from pyspark.ml.torch.distributor import TorchDistributor, _get_spark_partition_data_loader
from pyspark.sql import DataFrame, SparkSession
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.fresh import seconds_fresh
from benchmarks.mlp import adam, small
from benchmarks.pairs import Side, environment, interleave, options, seconds, verdict
from benchmarks.session import materialised, samples, session
from sparkdl import TorchRegressor

BAR = "at least 5"
WORKERS = 2
_ROWS = 400_000
_EPOCHS = 2
BATCH = 2048  # rows of the global batch


def distributed_loop(rows: int, batch: int, epochs: int, loader_workers: int) -> float:
    """The loop of a TorchDistributor user, in each process; returns the mean loss of the last epoch.

    Args:
        rows: rows of this process's partition.
        batch: rows of this process's batch.
        epochs: passes over the data.
        loader_workers: ``num_workers`` of the loader.
    """
    torch.set_num_threads(1)  # as many as the executor has cores
    dist.init_process_group("gloo")
    model = DistributedDataParallel(small())
    optimizer, criterion = adam(model.parameters()), nn.MSELoss()
    losses: list[torch.Tensor] = []
    for _ in range(epochs):
        losses = []
        for features, label in _get_spark_partition_data_loader(rows, batch, num_workers=loader_workers):
            optimizer.zero_grad()
            loss = criterion(model(features).squeeze(1), label.float())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    dist.destroy_process_group()
    return float(torch.stack(losses).mean())


class Fit:
    """Both sides on one DataFrame, with the last loss of each."""

    def __init__(self, frame: DataFrame, rows: int, epochs: int, loader_workers: int) -> None:
        self.losses: dict[str, float] = {}
        self._frame = frame
        self._epochs = epochs
        self._loop = (rows // WORKERS, BATCH // WORKERS, epochs, loader_workers)

    def sparkdl(self) -> None:
        estimator = TorchRegressor(
            model=small, optimizer=adam, numWorkers=WORKERS, batchSize=BATCH, epochs=self._epochs
        )
        self.losses["sparkdl"] = estimator.fit(self._frame).history[-1]["loss"]

    def distributor(self) -> None:
        gang = TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)
        self.losses["TorchDistributor"] = gang._train_on_dataframe(distributed_loop, self._frame, *self._loop)


def first_fit(spark: SparkSession) -> dict[str, float]:
    """The first fit of an application."""
    return {"seconds": seconds(_fit(spark, _ROWS, _EPOCHS, 1).sparkdl)}


def first_distributor(spark: SparkSession) -> dict[str, float]:
    """The first run of TorchDistributor in an application."""
    return {"seconds": seconds(_fit(spark, _ROWS, _EPOCHS, 1).distributor)}


def _fit(spark: SparkSession, rows: int, epochs: int, loader_workers: int) -> Fit:
    rows = rows // WORKERS * WORKERS  # the other side's loader needs partitions of equal size
    return Fit(materialised(samples(spark, rows, partitions=WORKERS)), rows, epochs, loader_workers)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=5, rows=_ROWS)
    parser.add_argument("--first", action="store_true", help="the first call of fresh applications, of default size")
    parser.add_argument("--epochs", type=int, default=_EPOCHS, help="passes over the data (default %(default)s)")
    parser.add_argument(
        "--loader-workers", type=int, default=1, help="num_workers of the other side's loader (default %(default)s)"
    )
    args = parser.parse_args(arguments)
    print(environment())
    if args.first:
        first = [
            Side(name, partial(seconds_fresh, f"benchmarks.fit.main:{function}"))
            for name, function in (("TorchDistributor", "first_distributor"), ("sparkdl", "first_fit"))
        ]
        pairs = interleave(*first, rounds=args.rounds, warmups=0)
        print(pairs.table("seconds"))
        print(f"ratio {pairs.ratio:.4g}")
        return
    with session("fit") as spark:
        fit = _fit(spark, args.rows, args.epochs, args.loader_workers)
        pairs = interleave(
            Side("TorchDistributor", lambda: seconds(fit.distributor)),
            Side("sparkdl", lambda: seconds(fit.sparkdl)),
            rounds=args.rounds,
        )
    print(pairs.table("seconds"))
    print("loss of the last epoch:", ", ".join(f"{name} {loss:.5f}" for name, loss in fit.losses.items()))
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
