"""Early stopping of epochs, of rounds and of an ensemble's members: when they end, and with which weights.

    n* = the last n with loss_n < loss_n*' - tol,  n*' the one before it      the best one so far, counted from 1
    stop after n  if  n - n* >= patience

which is the third of Prechelt's criteria (Early stopping - but when?, 1998) with strips of one epoch, and a tolerance
that is 0 for epochs and rounds: of equal losses the first one is the best.
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

_KEPT = ("best", "loss", "weights")


@dataclass
class EarlyStopping:
    """The best epoch, round or member so far.

    Attributes:
        patience: how many may follow the best one without a smaller loss; None counts nothing and never stops.
        tol: by how much a loss has to be smaller.
        best: the number of the best one, from 1; None without patience, and before any has a finite loss.
        loss: the loss of the best one.
        weights: the weights of the best one; None before there is one.
    """

    patience: int | None
    tol: float = 0.0
    best: int | None = None
    loss: float = math.inf
    weights: Any = None

    def after(self, number: int, loss: float, weights: Callable[[], Any] | None = None) -> bool:
        """Count one; returns whether it is the last.

        Args:
            number: of the epoch, round or member, from 1.
            loss: its loss; NaN is never the smallest.
            weights: gives its weights, and is called where they are the best so far; None where none are kept.
        """
        if self.patience is not None and loss < self.loss - self.tol:
            self.best, self.loss, self.weights = number, loss, None if weights is None else weights()
        return self.over(number)

    def over(self, number: int) -> bool:
        """Whether so many are enough."""
        return self.patience is not None and number - (self.best or 0) >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best one, its loss and its weights."""
        return {name: getattr(self, name) for name in _KEPT}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set it to a state that ``state_dict`` returned."""
        for name in _KEPT:
            setattr(self, name, state[name])


class GangEarlyStopping:
    """Early stopping of a gang's epochs, by ``valid_loss``, or by ``loss`` where there are no validation rows.

    Args:
        patience: epochs without a smaller loss after which training ends; None to train all epochs and keep the
            last weights.
        group: the members; rank 0 decides for all of them and keeps the weights.

    Attributes:
        over: whether training is to end.
    """

    def __init__(self, patience: int | None, group: Group) -> None:
        self.over = False
        self._epochs = EarlyStopping(patience)
        self._group = group

    @property
    def epoch(self) -> int | None:
        """The best epoch, from 1; None without patience, and before any epoch had a loss."""
        return self._epochs.best

    def after(self, row: Mapping[str, Any], module: nn.Module) -> bool:
        """Count an epoch; returns whether training is to end, the same on every member.

        Args:
            row: the epoch's row of the history.
            module: the replica's module as the epoch has left it.
        """
        if self._epochs.patience is None:
            return False
        loss = float(row.get("valid_loss", row["loss"]))
        over = self._epochs.after(row["epoch"], loss, lambda: pack(module) if self._group.rank == 0 else b"")
        # Rank 0 decides: were sums to differ in their last bit, some members would go on and wait for the others.
        verdict = torch.tensor([int(over)], device=next(module.parameters()).device)
        self._group.broadcast_(verdict)
        self.over = bool(verdict.item())
        return self.over

    def weights(self, module: nn.Module) -> bytes:
        """The weights to keep, as safetensors: the best epoch's, or the module's own; empty but on rank 0."""
        if self._group.rank:
            return b""
        best: bytes | None = self._epochs.weights
        return pack(module) if best is None else best

    def state_dict(self) -> dict[str, Any]:
        """The best epoch, its loss and, on rank 0, its weights; and whether training is to end."""
        return self._epochs.state_dict() | {"over": self.over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set it to a state that ``state_dict`` returned."""
        self._epochs.load_state_dict(state)
        self.over = state["over"]
        if self._group.rank and self._epochs.weights is not None:
            self._epochs.weights = b""  # of rank 0, whose state a member of a larger gang goes on from
