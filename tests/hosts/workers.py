"""What members of gangs on several hosts do. Each new Python worker imports this: it is light on purpose."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.shard import Shard
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective

STEPS = 10
"""Of ``training()``."""

COLUMNS = Columns((InputColumn("x"),), InputColumn("label"), row_id=InputColumn("row", "int64"))


class Restless(nn.Module):
    """Statistics of batches, masks, and every generator of random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 3]`` to ``[B, 4]``."""
        if self.training:
            x = x * (1 + 0.1 * random.gauss(0, 1) + 0.1 * np.random.randn() + 0.1 * torch.randn(()))
        return self.head(self.hidden(x))


def noisy(inputs: tuple[Any, ...], target: Tensor | None, generator: torch.Generator) -> tuple[Any, Tensor | None]:
    """The batch with noise that comes from the feed's own generator."""
    (x,) = inputs
    return (x + 0.1 * torch.randn(x.shape, generator=generator),), target


def rows() -> dict[str, np.ndarray]:
    """144 rows."""
    x = np.random.default_rng(3).normal(size=(144, 3)).astype(np.float32)
    return {"row": np.arange(144), "x": x, "label": (x[:, 0] > 0) + 2 * (x[:, 1] > 0)}


def training(**options: Any) -> Training:
    """Two epochs of five steps on ``rows()``, the last one of each with fewer rows."""
    objective = Objective(
        Restless,
        nn.CrossEntropyLoss(),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=STEPS + 2),
        max_grad_norm=0.5,
    )
    return Training(objective, 29, 2, seed=2, micro_batches=2, augment=noisy, **options)


@dataclass(frozen=True)
class Steps:
    """A hook that writes down the steps that are taken, of all attempts: rank, step, host.

    Attributes:
        path: a file that all hosts share.
    """

    path: str

    every_rank = True

    def on_step(self, run: Any) -> None:
        """Write a line."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{run.rank} {run.clock.step} {socket.gethostname()}\n")


def peers(world: World, part: Shard | None) -> dict[str, Any]:
    """A member's host, and the addresses that it has connections with after an all-reduce."""
    world.group().sum_(torch.ones(1 << 20))
    found = {"host": world.host, "connected": sorted(_connected())}
    world.all_gather_json("looked", {})  # a worker that leaves closes its peers' connections
    return found


def _connected() -> set[str]:
    own = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in own and fields[3] == "01":  # established
            found.add(socket.inet_ntoa(int(fields[2].partition(":")[0], 16).to_bytes(4, "little")))
    return found
