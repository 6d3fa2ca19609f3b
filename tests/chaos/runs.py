"""The run to which faults happen: small, uses all a step may depend on, and accounts for every row.

Two epochs of five steps. Each row has a number; the model notes the numbers of its rows, and a callback logs them.
Replaced workers import this module, so it imports nothing slow (torch's optimizers, metrics).
"""

from __future__ import annotations

import json
import os
import random
import socket
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
from sparkdl.training.objective.objective import Objective
from tests.faults import Decode, Fault, fed

STEPS = 5  # of an epoch
ROWS = 144
TRAINED = [row for row in range(ROWS) if row % 6]  # the others are held out
SIZE = 2  # workers

# Only to switch it off, torch's optimizers import its compiler, which takes each new worker four seconds.
for _name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
    _plain = getattr(torch.optim.Optimizer, _name).__wrapped__
    setattr(_plain, "__dynamo_disable", _plain)


class Momentum(torch.optim.Optimizer):
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
    """Masks, statistics of batches, every generator; and the numbers of its training rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)
        self.rows: list[int] = []

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        if self.training:
            self.rows += row.flatten().tolist()
            x = x * (1 + 0.1 * random.gauss(0, 1) + 0.1 * np.random.randn())
        output: Tensor = self.head(self.drop(torch.tanh(self.norm(self.first(x)))))
        return output


@dataclass(frozen=True)
class Rows:
    """A callback that logs the rows of each step, in one file of a folder for each rank."""

    folder: str

    def on_step(self, run: Any) -> None:
        rows, host = run.module.rows, socket.gethostname()
        line = {"step": run.clock.step, "rows": rows, "host": host, "pid": os.getpid()}
        with Path(self.folder, f"rows-{run.rank}").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        run.module.rows = []


def data() -> dict[str, np.ndarray]:
    """The labels of the validation rows are not those that training teaches."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(ROWS, 3)).astype(np.float32)
    label = (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
    held = np.arange(ROWS) % 6 == 0
    return {"x": x, "label": np.where(held, 3 - label, label), "weight": draw.uniform(0.5, 2, ROWS), "held": held}


def table() -> pa.Table:
    x, *others = data().items()
    number = pa.array([np.int64(row).tobytes() for row in range(ROWS)], pa.binary())
    rows = {"x": pa.FixedSizeListArray.from_arrays(pa.array(x[1].reshape(-1)), 3), "row": number}
    return pa.table(rows | {name: pa.array(array) for name, array in others})


def columns(faults: Sequence[Fault] = (), size: int = SIZE) -> Columns:
    firsts = [rank * ROWS // size for rank in range(size)]
    inputs = InputColumn("x"), InputColumn("row", decode=Decode(tuple(faults), firsts))
    return Columns(inputs, InputColumn("label"), InputColumn("weight"), validation=InputColumn("held", "bool"))


def augment(inputs: tuple[Any, ...], target: Tensor | None, generator: torch.Generator) -> Any:
    x, row = inputs
    return fed((x + 0.1 * torch.randn(x.shape, generator=generator), row), target)


def training(*callbacks: Any, epochs: int = 2, checkpoints: Path | None = None, **options: Any) -> Training:
    """The run; with a folder it saves a checkpoint every other step. ``options`` are fields of ``Training``."""
    scheduler = partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[2, 6])
    settings: dict[str, Any] = {"max_grad_norm": 0.5, "scheduler_interval": "step", "micro_batches": 2}
    objective = Objective(Restless, nn.CrossEntropyLoss(), partial(Momentum, lr=0.05), scheduler, **settings)
    checkpointer = None if checkpoints is None else Checkpointer(kept(checkpoints), CheckpointInterval.of(2))
    batch_size = len(TRAINED) // STEPS
    return Training(
        objective,
        batch_size,
        epochs,
        seed=2,
        augment=augment,
        callbacks=callbacks,
        checkpointer=checkpointer,
        **options,
    )


def kept(folder: Path) -> Checkpoints:
    return Checkpoints(str(folder / "checkpoints"), run="chaos")


def fit(
    cluster: Any,
    folder: Path,
    *callbacks: Any,
    data: Any = None,
    reads: Columns | None = None,
    epochs: int = 2,
    listener: Any = None,
    **options: Any,
) -> Any:
    """Run, or resume, in a folder; ``callbacks`` may be faults. ``data`` and ``reads`` are for clusters of Spark."""
    faults = [callback for callback in callbacks if isinstance(callback, Fault)]
    return cluster.gang(
        training(Rows(str(folder)), *callbacks, epochs=epochs, checkpoints=folder, **options),
        table() if data is None else data,
        reads or columns(faults, cluster.size),
        attempt=kept(folder).next_attempt(),
        listener=listener,
    )


def undisturbed(cluster: Any, **options: Any) -> Any:
    return cluster.gang(training(**options), table(), columns(size=cluster.size))


def assert_alike(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Two runs ended with bit-identical weights and the same history."""
    for worker, other in zip(actual, expected, strict=True):
        assert worker.weights == other.weights
        assert repr(untimed(worker.history)) == repr(untimed(other.history))
        for name in ("best_epoch", "stop_reason", "inputs", "output", "rows", "bytes_per_step"):
            assert worker.report[name] == other.report[name]


def untimed(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in ("seconds", "rows_per_second")} for row in history]


def logged(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The steps that a rank took, of all attempts; see ``Rows``."""
    return [json.loads(line) for line in (folder / f"rows-{rank}").read_text().splitlines()]


def check_rows(folder: Path, size: int = SIZE, epochs: int = 2) -> None:
    """Each epoch trained on every row once; attempts that repeat a step repeat its rows."""
    steps: dict[tuple[int, int], list[int]] = {}
    for rank in range(size):
        for line in logged(folder, rank):
            assert steps.setdefault((line["step"], rank), line["rows"]) == line["rows"]
    assert len(steps) == epochs * STEPS * size
    for epoch in range(epochs):
        epochs_rows = [rows for (step, _), rows in steps.items() if (step - 1) // STEPS == epoch]
        assert sorted(row for rows in epochs_rows for row in rows) == TRAINED


def check_checkpoints(folder: Path, *steps: int) -> None:
    """The newest checkpoint is of one of these steps, by default the last one; each with a manifest is complete."""
    newest = kept(folder).latest()
    assert newest is not None
    assert newest[1].manifest.clock.step in (steps or (2 * STEPS,))
    for manifest in (folder / "checkpoints").glob("attempt-*/manifest.json"):
        kept(folder).open(manifest.parent.name).verify()
