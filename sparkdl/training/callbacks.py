"""User callbacks that run on the workers during training.

A callback is an object with at least one of these methods:

    on_start(run)    before the first step, or before the first step after a resume
    on_step(run)     after each optimizer step
    on_epoch(run)    after each epoch, once the history has its row
    on_end(run)      after the last epoch

The workers get pickled copies of a callback, so its changes stay on them. Only rank 0 calls it, unless its attribute
``every_rank`` is true: then every rank does, and it may use collectives. An error that it raises fails the run.
Trackers, which run on the driver, are in ``sparkdl.ml.tracking.tracker``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.clock import Clock

MOMENTS = ("on_start", "on_step", "on_epoch", "on_end")


@dataclass
class CallbackContext:
    """The run as a callback sees it on one worker. Its objects are live, not copies.

    Attributes:
        rank: rank of the worker.
        size: number of workers.
        clock: epoch, step and samples so far.
        module: the module in training.
        device: device of the module.
        epochs: number of epochs that the user asked for.
        steps: steps per epoch.
        history: one row per finished epoch.
        loss: mean loss of this worker in the current epoch; None before its first row.
    """

    rank: int
    size: int
    clock: Clock
    module: nn.Module
    device: torch.device
    epochs: int
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    loss: float | None = None


def methods_of(callbacks: Sequence[Any], rank: int) -> dict[str, list[Callable[[CallbackContext], None]]]:
    """Moment -> the methods that the worker of this ``rank`` calls then, in the user's order."""
    called = [callback for callback in callbacks if rank == 0 or getattr(callback, "every_rank", False)]
    return {name: [getattr(callback, name) for callback in called if hasattr(callback, name)] for name in MOMENTS}


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise InvalidInput if an object has none of the four methods, or a method ``prepare``, as trackers have."""
    for callback in callbacks:
        if hasattr(callback, "prepare"):
            raise InvalidInput(f"callbacks holds {callback!r}, a tracker of the driver; pass it as trackers=[...].")
    check_methods("callbacks", callbacks)


def check_methods(param: str, callbacks: Sequence[Any]) -> None:
    """Raise InvalidInput if an object in this ``param`` has none of the four methods."""
    for callback in callbacks:
        if not any(callable(getattr(callback, name, None)) for name in MOMENTS):
            raise InvalidInput(
                f"{param} holds {callback!r}, which has none of the methods {', '.join(MOMENTS)}; expected one or more."
            )
