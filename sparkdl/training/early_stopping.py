"""Early stopping of epochs, of rounds and of an ensemble's members.

    n* = the last n with loss_n < loss_n*' - tol,  n*' the previous n*      the best number, from 1
    stop after n  if  n - n* >= patience

This is the third criterion of L. Prechelt, Early stopping - but when?, 1998, with strips of one epoch. Epochs and
rounds use ``tol = 0``: of equal losses the first is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparkdl.cluster.group.world import Group
from sparkdl.io.weights import pack


@dataclass
class EarlyStopping:
    """The best epoch, round or member so far."""

    patience: int | None  # stop after this many without a smaller loss; None never stops and tracks nothing
    tol: float = 0.0  # required decrease of the loss
    best: int | None = None  # from 1; None without ``patience``, and before the first finite loss
    loss: float = math.inf
    weights: Any = None

    def after(self, number: int, loss: float, weights: Callable[[], Any] | None = None) -> bool:
        """Record the loss of an epoch, round or member, from 1; return whether to stop. NaN is never the best.

        ``weights`` returns its weights, and is called only if it is the best so far; None to keep none.
        """
        if self.patience is not None and loss < self.loss - self.tol:
            self.best, self.loss, self.weights = number, loss, None if weights is None else weights()
        return self.finished(number)

    def finished(self, number: int) -> bool:
        """Whether to stop after this number."""
        return self.patience is not None and number - (self.best or 0) >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best number, its loss and its weights."""
        return {"best": self.best, "loss": self.loss, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.best, self.loss, self.weights = state["best"], state["loss"], state["weights"]


class GangEarlyStopping:
    """Early stopping of a gang's epochs by ``valid_loss``, or by ``loss`` without validation rows.

    Rank 0 decides for all and keeps the best weights. With ``patience`` None, the last weights are kept.
    """

    def __init__(self, patience: int | None, group: Group) -> None:
        self.finished = False  # whether training stops
        self.epochs = EarlyStopping(patience)
        self._group = group

    def after(self, row: Mapping[str, Any], module: nn.Module) -> bool:
        """Record an epoch's row of the history and its weights; return whether to stop, the same on every worker."""
        if self.epochs.patience is None:
            return False
        loss = float(row.get("valid_loss", row["loss"]))
        finished = self.epochs.after(row["epoch"], loss, lambda: pack(module) if self._group.rank == 0 else b"")
        # Rank 0 decides. If sums differed in their last bit, some workers would continue and wait for the rest.
        verdict = torch.tensor([int(finished)], device=next(module.parameters()).device)
        self._group.broadcast_(verdict)
        self.finished = bool(verdict.item())
        return self.finished

    def weights(self, module: nn.Module) -> bytes:
        """Weights of the best epoch, else of the module, as safetensors; empty except on rank 0."""
        if self._group.rank:
            return b""
        return pack(module) if self.epochs.weights is None else bytes(self.epochs.weights)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch, its loss, on rank 0 its weights, and whether training stops."""
        return self.epochs.state_dict() | {"finished": self.finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.epochs.load_state_dict(state)
        self.finished = state["finished"]
        if self._group.rank and self.epochs.weights is not None:
            self.epochs.weights = b""  # In a larger gang a new rank resumes from the state of rank 0.
