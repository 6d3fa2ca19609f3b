"""Early stopping: when training ends, and with which weights.

    e* = argmin_{e' <= e} loss_e'          the best epoch so far; the first of equal ones
    stop after epoch e  if  e - e* >= patience

which is the third of Prechelt's criteria (Early stopping - but when?, 1998) with strips of one epoch. The loss is
``valid_loss``, or ``loss`` where there are no validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sparkdl.cluster.group.world import Group
from sparkdl.io.weights import pack


class EarlyStopping:
    """The best epoch so far, and its weights.

    Args:
        patience: epochs without a smaller loss after which training ends; None to train all epochs and keep the
            last weights.
        group: the members; rank 0 decides for all of them and keeps the weights.

    Attributes:
        epoch: the best epoch, from 1; None without patience, and before any epoch had a loss.
        over: whether training is to end.
    """

    def __init__(self, patience: int | None, group: Group) -> None:
        self.epoch: int | None = None
        self.over = False
        self._patience = patience
        self._group = group
        self._best = math.inf
        self._weights: bytes | None = None

    def after(self, row: Mapping[str, Any], module: nn.Module) -> bool:
        """Take down an epoch; returns whether training is to end, the same on every member.

        Args:
            row: the epoch's row of the history.
            module: the replica's module as the epoch has left it.
        """
        if self._patience is None:
            return False
        loss = float(row.get("valid_loss", row["loss"]))
        if loss < self._best:
            self._best, self.epoch = loss, row["epoch"]
            self._weights = pack(module) if self._group.rank == 0 else b""
        # Rank 0 decides: were sums to differ in their last bit, some members would go on and wait for the others.
        device = next(module.parameters()).device
        verdict = torch.tensor([int(row["epoch"] - (self.epoch or 0) >= self._patience)], device=device)
        self._group.broadcast_(verdict)
        self.over = bool(verdict.item())
        return self.over

    def weights(self, module: nn.Module) -> bytes:
        """The weights to keep, as safetensors: the best epoch's, or the module's own; empty but on rank 0."""
        if self._group.rank:
            return b""
        return pack(module) if self._weights is None else self._weights

    def state_dict(self) -> dict[str, Any]:
        """The best epoch, its loss and, on rank 0, its weights; and whether training is to end."""
        return {"epoch": self.epoch, "best": self._best, "weights": self._weights, "over": self.over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set it to a state that ``state_dict`` returned."""
        self.epoch, self._best, self._weights, self.over = (
            state[name] for name in ("epoch", "best", "weights", "over")
        )
        if self._group.rank and self._weights is not None:
            self._weights = b""  # of rank 0, whose state a member of a larger gang goes on from
