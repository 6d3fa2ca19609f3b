"""Training by two workers, then one, then two is the training of one process."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparkdl.cluster import elastic
from sparkdl.cluster.inline import InlineCluster
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import WorkerLost
from sparkdl.io.weights import read_state, unpack
from sparkdl.telemetry.emit import record
from sparkdl.training.loop import Training, train
from sparkdl.training.objective import Objective

ROWS = 24
X = np.random.default_rng(2).normal(size=(ROWS, 3))
DATA = {"x": X, "row": np.arange(ROWS), "y": X @ [1.0, -2.0, 0.5]}
COLUMNS = Columns((InputColumn("x"), InputColumn("row")), InputColumn("y"), floating="float64")


@dataclass(frozen=True)
class Trains:
    """Trains seven epochs of one step, and keeps each in a file with its rows.

    Attributes:
        folder: where the epochs are kept.
        faulty: whether rank 1 of the first attempt is killed after two epochs, and a single worker waits at epoch 5.
    """

    folder: str
    faulty: bool = True

    def __call__(self, world: Any, shard: Any) -> int:
        for epoch in range(done(self.folder), 7):
            if self.faulty and (world.attempt, world.rank, epoch) == (0, 1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            self.train(world, shard, epoch)
            while self.faulty and world.size == 1 and epoch == 4:
                threading.Event().wait(0.02)
                record("checkpoint", clock=world.clock, trouble=[], pinned=True)
        return int(world.attempt)

    def train(self, world: Any, shard: Any, epoch: int) -> None:
        rows: list[int] = []

        def split(inputs: Any, target: Tensor | None) -> tuple[Any, Tensor | None]:
            x, row = inputs
            rows.extend(row.tolist())
            return (x,), target

        before = Path(self.folder, f"{epoch - 1}.weights").read_bytes() if epoch else None
        objective = Objective(partial(line, before), nn.MSELoss(), partial(torch.optim.SGD, lr=0.1), precision="fp64")
        trained = train(world, shard, Training(objective, batch_size=ROWS, seed=epoch, collate=split))
        seen = [row for shard in world.group().gather(rows) for row in shard]
        if world.rank == 0:
            Path(self.folder, f"{epoch}.weights").write_bytes(trained.weights)
            new = Path(self.folder, "new")
            new.write_text(json.dumps({"rows": sorted(seen), "size": world.size}))
            new.rename(Path(self.folder, f"{epoch}.json"))
            record("checkpoint", clock=world.clock, trouble=[], pinned=True)
        world.all_gather_json(f"kept {epoch}", {})


def line(packed: bytes | None) -> nn.Module:
    """A line with these weights, or the initial ones."""
    module = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.constant_(module.weight, 0.1)
    nn.init.zeros_(module.bias)
    if packed is not None:
        unpack(packed, module)
    return module


def done(folder: str) -> int:
    return len(list(Path(folder).glob("*.json")))


class Shaky(LocalCluster):
    """Two processes, with capacity for one during the third and fourth epoch."""

    folder = ""

    def capacity(self) -> Capacity:
        return Capacity(1 if 2 <= done(self.folder) < 4 else 2, 2)


@pytest.mark.chaos
def test_two_workers_then_one_then_two_train_as_one_would(tmp_path, monkeypatch):
    monkeypatch.setattr(elastic, "_POLL_RUNNING", 0.05)
    shaky, whole = tmp_path / "shaky", tmp_path / "whole"
    shaky.mkdir()
    whole.mkdir()
    with Shaky(2, timeout=30.0) as cluster:
        cluster.folder = str(shaky)
        supervisor = Supervisor(cluster, min_size=1, elastic_timeout=0.2, back_off=0, max_restarts=1)
        assert supervisor.gang(Trains(str(shaky)), DATA, COLUMNS) == [2, 2]
    assert supervisor.sizes == [2, 1, 2]
    assert [type(error) for error in supervisor.failures] == [WorkerLost]
    epochs = [json.loads((shaky / f"{epoch}.json").read_text()) for epoch in range(7)]
    sizes = [each["size"] for each in epochs]
    assert (sizes[:4], sizes[5:]) == ([2, 2, 1, 1], [2, 2])  # the fifth epoch may begin before or after the growth
    assert all(each["rows"] == list(range(ROWS)) for each in epochs)
    InlineCluster().gang(Trains(str(whole), faulty=False), DATA, COLUMNS)
    for epoch in range(7):
        found, expected = (read_state((folder / f"{epoch}.weights").read_bytes()) for folder in (shaky, whole))
        for name, values in expected.items():
            torch.testing.assert_close(found[name], values, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_smaller_gang_keeps_processes_of_cluster():
    with LocalCluster(2, timeout=30.0) as cluster:
        both = cluster.gang(lambda world, shard: os.getpid())
        assert cluster.gang(lambda world, shard: os.getpid(), size=1) == both[:1]
        assert cluster.gang(lambda world, shard: os.getpid()) == both
