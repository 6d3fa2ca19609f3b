"""Early stopping of epochs, of rounds and of an ensemble's members.

    n* = the last n with value_n < value_n*' - tol,  n*' the previous n*     the best number, from 1
    stop after n  if  n - n* >= patience

With the mode ``"max"``, n* is the last n with value_n > value_n*' + tol. This is the third criterion of L. Prechelt,
Early stopping - but when?, 1998, with strips of one epoch. With ``tol = 0``, of equal values the first is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from sparkdl.cluster.group.world import Group
from sparkdl.io.weights import pack
from sparkdl.training.objective.monitored_value import Mode


@dataclass
class EarlyStopping:
    """The best epoch, round or member so far."""

    patience: int | None = None  # stop after this many without a better value; None never stops
    tol: float = 0.0  # required improvement
    mode: Mode = "min"  # whether a lower or a higher value is better
    best: int | None = None  # from 1; None before the first finite value
    value: float | None = None  # the best one
    weights: Any = None

    def after(self, number: int, value: float, weights: Callable[[], Any] | None = None) -> bool:
        """Record the value of an epoch, round or member, from 1; return whether to stop. NaN is never the best.

        ``weights`` returns its weights, and is called only if it is the best so far; None to keep none.
        """
        if self._improves(value):
            self.best, self.value, self.weights = number, value, None if weights is None else weights()
        return self.finished(number)

    def _improves(self, value: float) -> bool:
        if self.value is None or not math.isfinite(value):
            return math.isfinite(value)
        return value < self.value - self.tol if self.mode == "min" else value > self.value + self.tol

    def finished(self, number: int) -> bool:
        """Whether to stop after this number."""
        return self.patience is not None and number - (self.best or 0) >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best number, its value and its weights."""
        return {"best": self.best, "value": self.value, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.best, self.value, self.weights = state["best"], state["value"], state["weights"]


class GangEarlyStopping:
    """Early stopping of a gang's epochs; rank 0 keeps the best epoch's weights.

    Args:
        group: of the workers.
        epochs: compares the epochs.
        keep: whether the result is the best epoch's weights; if not, the last weights.
    """

    def __init__(self, group: Group, epochs: EarlyStopping, *, keep: bool) -> None:
        self.reason: str | None = None  # why training stops before the last epoch
        self.epochs = epochs
        self._group, self.keep = group, keep

    @property
    def finished(self) -> bool:
        """Whether training stops."""
        return self.reason is not None

    def after(self, epoch: int, value: float, module: nn.Module) -> None:
        """Record an epoch, from 1, with its monitored value, the same on every worker, and its weights."""
        if not self.keep and self.epochs.patience is None:
            return
        weights = (lambda: b"" if self._group.rank else pack(module)) if self.keep else None
        if self.epochs.after(epoch, value, weights):
            self.reason = f"no better value for patience={self.epochs.patience}"

    def weights(self, module: nn.Module) -> bytes:
        """Weights of the best epoch, else of the module, as safetensors; empty except on rank 0."""
        if self._group.rank:
            return b""
        return pack(module) if self.epochs.weights is None else bytes(self.epochs.weights)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch, its value, on rank 0 its weights, and why training stops."""
        return self.epochs.state_dict() | {"reason": self.reason}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.epochs.load_state_dict(state)
        self.reason = state["reason"]
        if self._group.rank and self.epochs.weights is not None:
            self.epochs.weights = b""  # In a larger gang a new rank resumes from the state of rank 0.
