"""Epochs after the first against a bare DistributedDataParallel loop over tensors in memory.

Both run in the same two processes, one thread each, on the same rows in the same order. Rank 0 measures each epoch from
the draw of the permutation to the last step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.mlp import adam, small
from benchmarks.pairs import Side, environment, interleave, options, verdict
from sparkdl import Columns, InputColumn, LocalCluster, Objective, Training
from sparkdl.cluster.group.world import World
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard

BAR = "at least 0.95"
WORKERS = 2
BATCH = 2048  # rows of the global batch
SEED = 0

COLUMNS = Columns(
    inputs=(InputColumn("features"),),
    target=InputColumn("label", "float32"),
    row_id=InputColumn("id", "int64"),
    floating="float32",
)


@dataclass(frozen=True)
class BareLoop:
    """A training loop of draw, gather and step, and nothing else.

    Attributes:
        epochs: passes over the data.
    """

    epochs: int

    def __call__(self, world: World, shard: Shard | None) -> tuple[list[float], float]:
        """Seconds of each epoch, and the mean loss of the last one."""
        assert shard is not None
        rows, batch = shard.rows, BATCH // world.size
        # Sorted and in memory: the loop needs no index and no file.
        features, label = (shard.tensors[name][shard.order] for name in ("features", "label"))
        torch.manual_seed(generator(SEED, world.rank).initial_seed())
        model = DistributedDataParallel(small())
        optimizer, criterion = adam(model.parameters()), nn.MSELoss()
        seconds, total = [], torch.zeros(())
        for epoch in range(self.epochs):
            start = time.perf_counter()
            total = torch.zeros(())
            permutation = torch.randperm(rows, generator=generator(SEED, epoch, world.rank))
            for first in range(0, rows, batch):
                chosen = permutation[first : first + batch]
                loss = criterion(model(features.index_select(0, chosen)).squeeze(1), label.index_select(0, chosen))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach() * len(chosen)
            seconds.append(time.perf_counter() - start)
        world.group().mean_(total)
        return seconds, float(total) / rows


class Epochs:
    """Both sides on one data set, with the last loss of each."""

    def __init__(self, cluster: LocalCluster, rows: int, epochs: int) -> None:
        self.losses: dict[str, float] = {}
        self._cluster = cluster
        self._data = samples(rows)
        self._counted = rows * (epochs - 1)
        self._loop = BareLoop(epochs)
        self._training = Training(Objective(small, nn.MSELoss(), adam), BATCH, epochs, SEED)

    def sparkdl(self) -> float:
        """Rows per second."""
        history: list[dict[str, Any]] = self._cluster.gang(self._training, self._data, COLUMNS)[0].history
        self.losses["sparkdl"] = history[-1]["loss"]
        return self._counted / sum(float(row["seconds"]) for row in history[1:])

    def bare(self) -> float:
        """Rows per second."""
        seconds: list[float]
        seconds, self.losses["bare loop"] = self._cluster.gang(self._loop, self._data, COLUMNS)[0]
        return self._counted / sum(seconds[1:])


def samples(rows: int) -> dict[str, Any]:
    """Random rows whose order is not the order of their ids, as after a shuffle."""
    random = np.random.default_rng(SEED)
    features = random.random((rows, 28), np.float32)
    label = features[:, 0] - features[:, 1] * features[:, 2]
    return {"features": features, "label": label, "id": random.permutation(rows)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=15, rows=400_000)
    parser.add_argument(
        "--epochs", type=int, default=4, help="epochs of a run; the first does not count (default %(default)s)"
    )
    args = parser.parse_args(arguments)
    print(environment())
    with LocalCluster(WORKERS, threads=1) as cluster:
        rows = args.rows // BATCH * BATCH  # both sides have the same batches
        epochs = Epochs(cluster, rows, args.epochs)
        pairs = interleave(Side("sparkdl", epochs.sparkdl), Side("bare loop", epochs.bare), rounds=args.rounds)
    print(pairs.table("rows/s"))
    print("loss of the last epoch:", ", ".join(f"{name} {loss:.7f}" for name, loss in epochs.losses.items()))
    print(verdict(pairs.ratio, BAR))


if __name__ == "__main__":
    main()
