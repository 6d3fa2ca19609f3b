"""Trackers: hooks that are called on the driver and write a run down where its user looks at all runs.

    TorchClassifier(..., runDir="/runs/digits", hooks=[TensorBoard(), MLflow(experiment="digits")])

They work the same for gangs and for rounds. A tracker is settings alone: one object serves any number of fits, also at
a time. It is asked before anything is launched whether it can be used, and an extra that is not installed, or a place
that cannot be, refuses the fit. From then on it is best effort: a tracker that fails is a warning, and costs no run.

Libraries of others are imported when a fit begins, not before: without trackers nobody needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.ml.tracking.mlflow import MLflow as MLflow
    from sparkdl.ml.tracking.tensorboard import TensorBoard as TensorBoard

_HOMES = {"MLflow": "sparkdl.ml.tracking.mlflow", "TensorBoard": "sparkdl.ml.tracking.tensorboard"}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - the names are those of the table


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkdl.ml.tracking' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
