"""Early stopping by rounds: when they end, and with which weights.

    r* = argmin_{r' <= r} loss_r'          the best round so far; the first of equal ones
    stop after round r  if  r - r* >= patience

as ``sparkdl.training.early_stopping`` has it of epochs. The loss is ``valid_loss``, or where no row is held out what
the algorithm itself says of it, its ``loss`` or ``objective``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.rounds.parameters import Weights

_LOSSES = ("valid_loss", "loss", "objective")


@dataclass
class Patience:
    """The best round so far.

    Attributes:
        patience: rounds without a smaller loss after which it is over; None for as many as there are.
        round: the best one; None before there is one.
        loss: of that round.
        kept: its weights.
    """

    patience: int | None = None
    round: int | None = None
    loss: float = math.inf
    kept: Weights | None = None

    def after(self, row: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take down a round.

        Raises:
            InvalidInput: nothing in the row says how good it is.
        """
        loss = next((float(row[name]) for name in _LOSSES if name in row), None)
        if loss is None:
            raise InvalidInput(
                "patience counts rounds without a smaller loss, and the history of this algorithm has none; set "
                "validationCol, or leave patience out: it stops by a rule of its own."
            )
        if loss < self.loss:
            self.round, self.loss, self.kept = row["round"], loss, dict(state["weights"])

    def over(self, done: int) -> bool:
        """Whether it is, after so many rounds."""
        return self.patience is not None and done - (self.round or 0) >= self.patience

    def weights(self, state: Mapping[str, Any]) -> Weights:
        """The weights to keep: the best round's, or the state's own."""
        return dict(state["weights"]) if self.kept is None else self.kept

    def state(self) -> dict[str, Any]:
        """The best round, as plain data."""
        return {"round": self.round, "loss": self.loss, "kept": self.kept}
