"""Runs for the report page: real ones, of processes of this machine, with all that a fit leaves in its directory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from sparkdl.checkpoint.checkpointer import Checkpointer
from sparkdl.checkpoint.interval import CheckpointInterval
from sparkdl.checkpoint.store import Checkpoints
from sparkdl.cluster.local import LocalCluster
from sparkdl.cluster.protocol import Capacity, Cluster
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.errors import SparkdlError
from sparkdl.ml.report import make_report
from sparkdl.ml.run import Run
from sparkdl.rounds import Algorithm
from sparkdl.rounds.loop import Rounds
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_log import EventLog
from sparkdl.training.loop import Training
from sparkdl.training.objective import Objective

ROWS, CLASSES, PARTS = 2_000, 3, 3
COLUMNS = Columns((InputColumn("x"),), InputColumn("label"), validation=InputColumn("held", "bool"))
ENVIRONMENT = {"python": "3.11.7", "torch": torch.__version__, "spark": "4.3.0", "driver": os.uname().nodename}
TIMEOUT = 60.0


def data(rows: int = ROWS) -> dict[str, np.ndarray]:
    """Classes that can be told from the numbers; every fifth row is held out."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(rows, 20)).astype(np.float32)
    label = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return {"x": x, "label": label, "held": np.arange(rows) % 5 == 0}


def network() -> nn.Module:
    """A perceptron."""
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, CLASSES))


@dataclass(frozen=True)
class Kills:
    """A hook that kills a member after a step, once.

    Attributes:
        marker: the file that says that it was done.
        rank: of the member.
        step: after which.
    """

    marker: str
    rank: int
    step: int
    every_rank: bool = field(default=True, init=False)

    def on_step(self, run: Any) -> None:
        if run.rank == self.rank and run.clock.step == self.step and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Fails:
    """A hook that fails."""

    def on_step(self, run: Any) -> None:
        if run.clock.step == 20:
            raise ValueError("the <b>loss</b> went wrong")


class Shrinking(LocalCluster):
    """Processes, with room for one fewer once a member was killed."""

    marker = ""

    def capacity(self) -> Capacity:
        lost = os.path.exists(self.marker)
        return Capacity(self.size - lost, self.size)


def training(epochs: int = 4, *, hooks: Sequence[Any] = (), rate: float = 0.01) -> Training:
    """What the gangs do."""
    metrics = {"accuracy": MulticlassAccuracy(CLASSES), "f1": MulticlassF1Score(CLASSES)}
    objective = Objective(network, nn.CrossEntropyLoss(), partial(torch.optim.Adam, lr=rate), metrics=metrics)
    return Training(objective, batch_size=50, epochs=epochs, hooks=hooks)


def gang(directory: Path, cluster: Cluster, wanted: Training, **supervision: Any) -> Run:
    """Train on a gang, and leave behind what a fit does; of one that fails as well."""
    run = Run(str(directory))
    configuration = {"class": "TorchClassifier", "epochs": wanted.epochs, "batchSize": wanted.batch_size}
    keeper = Checkpointer(Checkpoints(str(directory / "checkpoints"), run="a run"), CheckpointInterval.of(10))
    supervisor = Supervisor(cluster, back_off=0.1, **supervision)
    run.save("config", configuration)
    with EventLog(run.events) as logbook:
        _note(logbook, "begin", environment=ENVIRONMENT)
        try:
            members = supervisor.gang(replace(wanted, keeper=keeper), data(), COLUMNS, listener=logbook)
        except SparkdlError as error:
            _note(logbook, "end", error=f"{type(error).__name__}: {error}")
            return run
        _note(logbook, "end", error=None)
    run.save("history", members[0].history)
    run.save("report", make_report(members, members[0].report["train_seconds"], supervisor))
    return run


def rounds(directory: Path, cluster: Cluster, algorithm: Algorithm, *, max_rounds: int | None = None) -> Run:
    """Train in rounds, and leave behind what a fit does."""
    run = Run(str(directory))
    objective = Objective(network, nn.CrossEntropyLoss(), partial(torch.optim.SGD, lr=0.1))
    run.save("config", {"class": "TorchClassifier", "strategy": str(algorithm)})
    with EventLog(run.events) as logbook:
        _note(logbook, "begin", environment=ENVIRONMENT)
        plan = Rounds(algorithm, objective, memories=str(directory / "memories"), max_rounds=max_rounds)
        plan.listener = lambda row: _note(logbook, "round", **row, rounds=None)
        with cluster.map_reduce(data(), COLUMNS, parts=PARTS, listener=logbook) as jobs:
            _, history = plan.run(jobs)
        _note(logbook, "end", error=None)
    run.save("history", history)
    seconds = sum(row["seconds"] for row in history)
    run.save("report", {"seconds": seconds, "rows": ROWS, "restarts": 0, "workers": [PARTS], "rounds": len(history)})
    return run


def _note(logbook: EventLog, kind: str, **payload: Any) -> None:
    now = time.time()
    logbook(Event(kind, -1, 0, now, None, payload, os.uname().nodename, now))
