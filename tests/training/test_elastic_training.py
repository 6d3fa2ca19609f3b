"""Real training, by processes that become fewer and more again, is the training of one process."""

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

LONG = 30.0  # seconds after which something that should have happened has not
ROWS = 24
X = np.random.default_rng(2).normal(size=(ROWS, 3))
DATA = {"x": X, "row": np.arange(ROWS), "y": X @ [1.0, -2.0, 0.5]}
COLUMNS = Columns((InputColumn("x"), InputColumn("row")), InputColumn("y"), floating="float64")


def line(packed: bytes | None) -> nn.Module:
    """A line with these weights, or those it begins with."""
    module = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.constant_(module.weight, 0.1)
    nn.init.zeros_(module.bias)
    if packed is not None:
        unpack(packed, module)
    return module


@dataclass(frozen=True)
class Trains:
    """Seven epochs of one step, each kept in a file with the rows that were seen in it.

    Attributes:
        folder: where the epochs are kept.
        faulty: in the first attempt the last member is killed after two epochs; a single one goes no further than
            five.
    """

    folder: str
    faulty: bool = True

    def __call__(self, world: Any, part: Any) -> int:
        for epoch in range(done(self.folder), 7):
            if self.faulty and (world.attempt, world.rank, epoch) == (0, 1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            self.train(world, part, epoch)
            while self.faulty and world.size == 1 and epoch == 4:
                threading.Event().wait(0.02)
                record("checkpoint", clock=world.clock, trouble=[], pinned=True)
        return int(world.attempt)

    def train(self, world: Any, part: Any, epoch: int) -> None:
        """One epoch from where the one before has ended."""
        rows: list[int] = []

        def split(inputs: Any, target: Tensor | None) -> tuple[Any, Tensor | None]:
            x, row = inputs
            rows.extend(row.tolist())
            return (x,), target

        before = Path(self.folder, f"{epoch - 1}.weights").read_bytes() if epoch else None
        objective = Objective(partial(line, before), nn.MSELoss(), partial(torch.optim.SGD, lr=0.1), precision="fp64")
        trained = train(world, part, Training(objective, batch_size=ROWS, seed=epoch, collate=split))
        seen = [row for part in world.group().gather(rows) for row in part]
        if world.rank == 0:
            Path(self.folder, f"{epoch}.weights").write_bytes(trained.weights)
            new = Path(self.folder, "new")
            new.write_text(json.dumps({"rows": sorted(seen), "size": world.size}))
            new.rename(Path(self.folder, f"{epoch}.json"))
            record("checkpoint", clock=world.clock, trouble=[], pinned=True)
        world.all_gather_json(f"kept {epoch}", {})


def done(folder: str) -> int:
    return len(list(Path(folder).glob("*.json")))


class Shaky(LocalCluster):
    """Two processes, with room for one while the third and the fourth epoch are trained."""

    folder = ""

    def capacity(self) -> Capacity:
        return Capacity(1 if 2 <= done(self.folder) < 4 else 2, 2)


def epochs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{epoch}.json").read_text()) for epoch in range(7)]


@pytest.mark.chaos
def test_two_members_then_one_then_two_again_train_as_one_would(tmp_path, monkeypatch):
    monkeypatch.setattr(elastic, "_LOOK", 0.05)
    shaky, whole = tmp_path / "shaky", tmp_path / "whole"
    shaky.mkdir()
    whole.mkdir()
    with Shaky(2, timeout=LONG) as cluster:
        cluster.folder = str(shaky)
        supervisor = Supervisor(cluster, min_size=1, elastic_timeout=0.2, back_off=0, max_restarts=1)
        assert supervisor.gang(Trains(str(shaky)), DATA, COLUMNS) == [2, 2]
    assert supervisor.sizes == [2, 1, 2]
    assert [type(error) for error in supervisor.failures] == [WorkerLost]
    assert [each["size"] for each in epochs(shaky)] == [2, 2, 1, 1, 1, 2, 2]
    assert all(each["rows"] == list(range(ROWS)) for each in epochs(shaky))
    InlineCluster().gang(Trains(str(whole), faulty=False), DATA, COLUMNS)
    for epoch in range(7):
        found, expected = (read_state((folder / f"{epoch}.weights").read_bytes()) for folder in (shaky, whole))
        for name, values in expected.items():
            torch.testing.assert_close(found[name], values, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_processes_that_a_small_gang_leaves_out_stay(tmp_path):
    def pid(world: Any, part: Any) -> int:
        return os.getpid()

    with LocalCluster(2, timeout=LONG) as cluster:
        both = cluster.gang(pid)
        assert cluster.gang(pid, size=1) == both[:1]
        assert cluster.gang(pid) == both
