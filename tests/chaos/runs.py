"""The run that everything here happens to: small, with all that a step may depend on, and with every row accounted for.

Two epochs of five steps. Each row has a number; the model notes the numbers that it is given, and a hook writes them
down after each step. Members import this module, so that what is slow to import (torch's own optimizers, metrics) is
left out: more than fifty members are replaced here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective
from tests.faults import Decode, Fault, fed

STEPS = 5  # of an epoch
ROWS = 144
TRAINED = [row for row in range(ROWS) if row % 6]  # the others are held out
SIZE = 2  # members

# Only to switch it off, torch's optimizers import its compiler, which takes each new member four seconds.
for _name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
    _plain = getattr(torch.optim.Optimizer, _name).__wrapped__
    setattr(_plain, "__dynamo_disable", _plain)


class Momentum(torch.optim.Optimizer):
    """Stochastic gradient descent with momentum."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    before = self.state[parameter].get("momentum", torch.zeros_like(parameter))
                    self.state[parameter]["momentum"] = momentum = 0.9 * before + parameter.grad
                    parameter.sub_(group["lr"] * momentum)


class Restless(nn.Module):
    """Masks, statistics of batches, every generator; and the numbers of the rows that it learns from."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.head = (
            nn.Linear(3, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.3),
            nn.Linear(8, 4),
        )
        self.rows: list[int] = []

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        if self.training:
            self.rows += row.flatten().tolist()
            x = x * (1 + 0.1 * random.gauss(0, 1) + 0.1 * np.random.randn())
        found: Tensor = self.head(self.drop(torch.tanh(self.norm(self.first(x)))))
        return found


@dataclass(frozen=True)
class Rows:
    """A hook that writes down which rows each member has learnt from in each step.

    Attributes:
        folder: where; a file for each rank.
    """

    folder: str
    every_rank = True

    def on_step(self, run: Any) -> None:
        line = {"epoch": run.clock.epoch, "step": run.clock.step, "rows": run.module.rows}
        with Path(self.folder, f"rows-{run.rank}").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        run.module.rows = []


def table() -> pa.Table:
    """The labels of the rows that are held out are not those that training teaches."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(ROWS, 3)).astype(np.float32)
    label = (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
    held = np.arange(ROWS) % 6 == 0
    arrays = {"label": np.where(held, 3 - label, label), "weight": draw.uniform(0.5, 2, ROWS), "held": held}
    number = pa.array([np.int64(row).tobytes() for row in range(ROWS)], pa.binary())
    rows = {"x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3), "row": number}
    return pa.table(rows | {name: pa.array(array) for name, array in arrays.items()})


def columns(faults: Sequence[Fault] = (), size: int = SIZE) -> Columns:
    firsts = [rank * ROWS // size for rank in range(size)]
    inputs = InputColumn("x"), InputColumn("row", decode=Decode(tuple(faults), firsts))
    return Columns(inputs, InputColumn("label"), InputColumn("weight"), validation=InputColumn("held", "bool"))


def augment(inputs: tuple[Any, ...], target: Tensor | None, generator: torch.Generator) -> Any:
    x, row = inputs
    return fed((x + 0.1 * torch.randn(x.shape, generator=generator), row), target)


def training(*hooks: Any, epochs: int = 2, checkpoints: Path | None = None, every: int = 2) -> Training:
    """The run, kept every other step where there is a folder for its checkpoints."""
    objective = Objective(
        Restless,
        nn.CrossEntropyLoss(),
        partial(Momentum, lr=0.05),
        partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2, 6]),
        max_grad_norm=0.5,
    )
    keeper = None if checkpoints is None else Checkpointer(kept(checkpoints), CheckpointInterval.of(every))
    batch_size = len(TRAINED) // STEPS
    return Training(objective, batch_size, epochs, seed=2, micro_batches=2, augment=augment, hooks=hooks, keeper=keeper)


def kept(folder: Path) -> Checkpoints:
    return Checkpoints(str(folder / "checkpoints"), run="chaos")


def fit(cluster: Any, folder: Path, *faults: Any, hooks: Sequence[Any] = (), **options: Any) -> Any:
    """Run, or go on, in a folder; rows are written down there."""
    options = {"epochs": 2} | options
    listener = options.pop("listener", None)
    work = training(Rows(str(folder)), *faults, *hooks, checkpoints=folder, **options)
    attempt = kept(folder).next_attempt()
    return cluster.gang(work, table(), columns(faults, cluster.size), attempt=attempt, listener=listener)


def undisturbed(cluster: Any, **options: Any) -> Any:
    """What every run here has to end with."""
    return cluster.gang(training(**options), table(), columns(size=cluster.size))


def check_rows(folder: Path, size: int = SIZE, epochs: int = 2) -> None:
    """Every row was learnt from once an epoch, in the attempts that count; in the others, in the same step."""
    steps: dict[tuple[int, int], list[int]] = {}
    for rank in range(size):
        for text in (folder / f"rows-{rank}").read_text().splitlines():
            line = json.loads(text)
            assert steps.setdefault((line["step"], rank), line["rows"]) == line["rows"]
    assert len(steps) == epochs * STEPS * size
    for epoch in range(epochs):
        ours = [rows for (step, _), rows in steps.items() if (step - 1) // STEPS == epoch]
        assert sorted(row for rows in ours for row in rows) == TRAINED


def check_checkpoints(folder: Path, *steps: int) -> None:
    """The newest is of one of these steps, by default that of the end, and whatever claims to be one is whole."""
    found = kept(folder).latest()
    assert found is not None
    assert found[1].manifest.clock.step in (steps or (2 * STEPS,))
    for manifest in (folder / "checkpoints").glob("attempt-*/manifest.json"):
        kept(folder).open(manifest.parent.name).verify()
