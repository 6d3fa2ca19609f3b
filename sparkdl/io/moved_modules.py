"""Modules that have moved: saved models, estimators and states of earlier versions name them as they were."""

from __future__ import annotations

_SERVING = "sparkdl.ml.inference"
_OBJECTIVE = "sparkdl.training.objective"

MOVED = {
    "sparkdl.telemetry.clock": "sparkdl.data.clock",
    f"{_SERVING}.layer_output": "sparkdl.serving.layer_output",
    f"{_SERVING}.outputs": "sparkdl.serving.outputs",
    f"{_SERVING}.trained_module": "sparkdl.serving.trained_module",
    "sparkdl.ml.persistence.export": "sparkdl.serving.format.export",
    "sparkdl.training.callbacks": "sparkdl.training.callbacks.callback",
    "sparkdl.training.early_stopping": "sparkdl.training.callbacks.early_stopping",
    "sparkdl.training.ema": "sparkdl.training.callbacks.ema",
    _OBJECTIVE: f"{_OBJECTIVE}.objective",
    **{f"sparkdl.training.{name}": f"{_OBJECTIVE}.{name}" for name in ("labels", "loss", "metrics", "monitored_value")},
    "sparkdl.training.optimizers": f"{_OBJECTIVE}.optimizers",
}
"""For each module that earlier versions named in a file, the module that has its classes and functions now."""


def present_name(module: str) -> str:
    """The present name of a module that an earlier version named."""
    return MOVED.get(module, module)
