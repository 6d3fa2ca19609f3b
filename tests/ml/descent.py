"""An algorithm of rounds as a user would write one: gradient descent on all rows, a step a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.rounds import add
from sparkdl.rounds.evaluate import evaluate
from sparkdl.rounds.parameters import module_of, start, trainable


@dataclass(frozen=True)
class Descent:
    """Steps of a fixed length along the gradient.

    Attributes:
        rate: of the steps.
        rounds: how many.
    """

    rate: float = 0.5
    rounds: int = 3
    uses_optimizer = False

    def init(self, objective: Any, seed: int) -> dict[str, Any]:
        """The model as it begins."""
        return {"weights": start(objective, seed)[0], "round": 0, "loss": 0.0}

    def map(self, objective: Any, state: Any, part: Any, memory: Any) -> Any:
        """Sums over a part's rows."""
        module = module_of(objective, state["weights"])
        loss, mass = evaluate(objective, module, part)
        found = {name: each.grad for name, each in trainable(module).items() if each.grad is not None}
        none = {name: torch.zeros_like(each) for name, each in trainable(module).items()}
        return none | found | {"loss of all": loss, "mass of all": mass}, None

    def reduce(self, one: Any, other: Any) -> Any:
        """Sums over two."""
        return add(one, other)

    def apply(self, state: Any, update: Any) -> Any:
        """A step."""
        mass = float(update["mass of all"])
        weights = {name: each - self.rate * update[name] / mass for name, each in state["weights"].items()}
        return {"weights": weights, "round": state["round"] + 1, "loss": float(update["loss of all"]) / mass}

    def converged(self, state: Any) -> bool:
        """After so many rounds."""
        return bool(state["round"] >= self.rounds)

    def metrics(self, state: Any) -> dict[str, Any]:
        """The loss before the step."""
        return {"loss": state["loss"]}
