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

from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.io.weights import Slices
from sparkdl.training.layouts import Replica
from sparkdl.training.objective.monitored_value import Mode
from sparkdl.training.weight_slices import holds, pack_weights, returns_others, weight_slices, weights_of


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
    """Early stopping of a gang's epochs; each worker keeps its slices of the best epoch's weights.

    ``epochs`` compares them. The result is the best epoch's weights if ``keep``, else the last weights.
    """

    def __init__(self, replica: Replica, group: Group, epochs: EarlyStopping, *, keep: bool) -> None:
        self.reason: str | None = None  # why training stops before the last epoch
        self.epochs, self.keep = epochs, keep
        self.slices: Slices = weight_slices(replica, group)
        self._replica, self._group = replica, group

    @property
    def finished(self) -> bool:
        """Whether training stops."""
        return self.reason is not None

    def after(self, epoch: int, value: float) -> None:
        """Record an epoch, from 1, with its monitored value, the same on every worker."""
        if not self.keep and self.epochs.patience is None:
            return
        if self.epochs.after(epoch, value, self._weights if self.keep else None):
            self.reason = f"no better value for patience={self.epochs.patience}"

    def packed_weights(self, write_rows: Callable[[str, Tensor], str] | None = None) -> list[memoryview]:
        """This worker's part of the best epoch's weights, else of the live ones, as ``pack_weights``.

        ``write_rows`` writes the rows of tables; without it, they are among the bytes.
        """
        weights = self.epochs.weights or self._weights(copy=False)
        return pack_weights(weights, self.slices, self._replica.divided, write_rows)

    def _weights(self, *, copy: bool = True) -> dict[str, Any]:
        return weights_of(self._replica, self.slices, self._group.rank, copy=copy)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch, its value and its weights, the slices under ``"shared"``, and why training stops."""
        state, weights = self.epochs.state_dict() | {"reason": self.reason}, self.epochs.weights
        if weights is not None:
            state |= {"weights": {**weights, "slices": {}}, "shared": weights["slices"]}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.epochs.load_state_dict(state)
        self.reason, weights = state["reason"], state["weights"]
        if weights is not None:
            # In a larger gang a new rank resumes from the state of rank 0.
            others = returns_others(self._replica, self._group.rank)
            first = {name: weights[name] if others else {} for name in ("others", "aliases")}
            # In the order of ``weights_of``: files have their own.
            slices = {key: state["shared"][key] for key, part in self.slices.items() if holds(part)}
            self.epochs.weights = {"slices": slices, **first}
