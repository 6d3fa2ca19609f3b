"""Made-up runs: the events that a driver hears of one, told to hooks without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl.ml.tracking.tracker import DriverHooks, TrackerContext
from sparkdl.telemetry.event import Event

CONFIGURATION = {"class": "TorchClassifier", "batchSize": 32, "inputCols": ["features"], "precision": "fp32"}
ENVIRONMENT = {"python": "3.11.7", "master": "local[2]"}
REPORT = {"seconds": 12.5, "rows": 64, "verdict": "Compute-bound.", "phases": {"feed": 1.0}}


def epoch(number: int, loss: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of a gang's history, of two steps and 64 rows an epoch."""
    return {
        "epoch": number,
        "step": 2 * number,
        "samples": 64 * number,
        "loss": 1 / number if loss is None else loss,
        "valid_loss": 2 / number,
        "seconds": 0.5,
        "rows_per_second": 128.0,
        **more,
    }


class Told:
    """A run that hooks are told of.

    Args:
        hooks: the user's objects.
        directory: of the run.
    """

    def __init__(self, *hooks: Any, directory: str | None = None, **configuration: Any) -> None:
        run = TrackerContext("TorchClassifier run", directory, CONFIGURATION | {"runDir": directory} | configuration)
        self.hooks = DriverHooks(hooks, run)
        self.event("begin", environment=ENVIRONMENT)

    def event(self, kind: str, clock: dict[str, int] | None = None, **payload: Any) -> None:
        """Something has happened on rank 0, or on the driver."""
        self.hooks(Event(kind, 0, 0, 0.0, clock, payload))

    def step(self, number: int, loss: float | None = 0.5, rate: float = 64.0) -> None:
        """A gang is on its way."""
        clock = {"epoch": number // 2, "step": number, "samples": 32 * number}
        self.event("progress", clock, loss=loss, rows_per_second=rate, epochs=3, steps=2)

    def rows(self, *rows: dict[str, Any]) -> None:
        """Rows of the history, one after the other."""
        for row in rows:
            kind = next(name for name in ("epoch", "round", "member") if name in row)
            self.event(kind, {"epoch": row.get("epoch", 0), "step": 0, "samples": 0}, **row)

    def restored(self, *rows: dict[str, Any]) -> None:
        """The run goes on from where it was left."""
        self.event("restored", history=list(rows))

    def end(self, history: Sequence[dict[str, Any]] = (), **ending: Any) -> None:
        """The run is over."""
        self.hooks.finish(history, **({"report": REPORT} | ending))
