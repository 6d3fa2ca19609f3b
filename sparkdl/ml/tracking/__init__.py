"""Trackers: callbacks that run on the driver and log a run to TensorBoard, MLflow or another service.

    TorchClassifier(..., runDir="/runs/digits", trackers=[TensorBoard(), MLflow(experiment="digits")])

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
    from sparkdl.ml.tracking.registration import Registration as Registration
    from sparkdl.ml.tracking.tensorboard import TensorBoard as TensorBoard

__all__ = ["MLflow", "Registration", "TensorBoard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sparkdl.ml.tracking' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{name.lower()}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
