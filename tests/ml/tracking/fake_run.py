"""Runs for trackers, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkdl.io.redaction import public
from sparkdl.ml.tracking.tracker import TrackerContext, TrackerList
from sparkdl.telemetry.event import Event
from tests.sessions import ROOT

CONFIGURATION = {"class": "TorchClassifier", "batchSize": 32, "inputCols": ["features"], "precision": "fp32"}
ENVIRONMENT = {"python": "3.11.7", "master": "local[2]"}
REPORT = {"seconds": 12.5, "rows": 64, "verdict": "Compute-bound.", "phases": {"feed": 1.0}}


def epoch(number: int, loss: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of a gang's history, with two steps and 64 rows an epoch."""
    loss = 1 / number if loss is None else loss
    row = {"epoch": number, "step": 2 * number, "samples": 64 * number, "loss": loss, "valid_loss": 2 / number}
    return {**row, "seconds": 0.5, "rows_per_second": 128.0, **more}


def runs(store: str, experiment: str = "digits") -> Any:
    """MLflow's runs in the order of their starts."""
    import mlflow

    client = mlflow.MlflowClient(store)
    number = client.get_experiment_by_name(experiment).experiment_id
    return client.search_runs([number], order_by=["start_time ASC"])


def without_java(script: str, argument: str, store: str, folder: Path) -> str:
    """What a Python script with MLflow prints in a process that finds no Java."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(("MLFLOW", "DO_NOT"))}
    environment |= dict.fromkeys(("PATH", "JAVA_HOME"), "/nowhere") | {"HOME": str(folder)}
    environment |= {"MLFLOW_TRACKING_URI": store, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", script, argument]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class FakeRun:
    """Calls trackers as the driver does."""

    def __init__(self, *callbacks: Any, directory: str | None = None, **configuration: Any) -> None:
        shown = directory and public(directory)
        run = TrackerContext("TorchClassifier run", directory, CONFIGURATION | {"runDir": shown} | configuration)
        self.callbacks = TrackerList(callbacks, run)
        self.event("begin", environment=ENVIRONMENT)

    def event(self, kind: str, clock: dict[str, int] | None = None, **payload: Any) -> None:
        self.callbacks(Event(kind, 0, 0, 0.0, clock, payload))

    def step(self, number: int, loss: float | None = 0.5, rate: float = 64.0) -> None:
        clock = {"epoch": number // 2, "step": number, "samples": 32 * number}
        self.event("progress", clock, loss=loss, rows_per_second=rate, epochs=3, steps=2)

    def rows(self, *rows: dict[str, Any]) -> None:
        for row in rows:
            kind = next(name for name in ("epoch", "round", "member") if name in row)
            self.event(kind, {"epoch": row.get("epoch", 0), "step": 0, "samples": 0}, **row)

    def restored(self, *rows: dict[str, Any]) -> None:
        self.event("restored", history=list(rows))

    def end(self, history: Sequence[dict[str, Any]] = (), **ending: Any) -> None:
        self.callbacks.finish(history, **({"report": REPORT} | ending))
