"""Trackers: callbacks that run on the driver and log a run to TensorBoard, MLflow or another service.

    TorchClassifier(..., runDir="/runs/digits", hooks=[TensorBoard(), MLflow(experiment="digits")])

Trackers serve gangs and rounds. A tracker holds settings only, so one object serves any number of fits, also
concurrent ones. Before workers start, a tracker checks its package and its destination; if one is missing, ``fit``
raises. After that, a tracker that fails only warns.

A tracker's package is imported when a fit begins.
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
