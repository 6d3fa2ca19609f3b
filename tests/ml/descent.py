"""A user's algorithm of rounds: gradient descent on all rows, one step a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparkdl.rounds import add
from sparkdl.rounds.evaluate import evaluate
from sparkdl.rounds.parameters import module_of, start, trainable


@dataclass(frozen=True)
class Descent:
    rate: float = 0.5
    rounds: int = 3
    uses_optimizer = False

    def init(self, objective: Any, seed: int) -> dict[str, Any]:
        return {"weights": start(objective, seed)[0], "round": 0, "loss": 0.0}

    def map(self, objective: Any, state: Any, shard: Any, memory: Any) -> Any:
        module = module_of(objective, state["weights"])
        loss, denominator = evaluate(objective, module, shard)
        gradients = {
            name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in trainable(module).items()
        }
        return gradients | {"loss sum": loss, "denominator": denominator}, None

    def reduce(self, one: Any, other: Any) -> Any:
        return add(one, other)

    def apply(self, state: Any, update: Any) -> Any:
        rows = float(update["denominator"])
        weights = {name: each - self.rate * update[name] / rows for name, each in state["weights"].items()}
        return {"weights": weights, "round": state["round"] + 1, "loss": float(update["loss sum"]) / rows}

    def converged(self, state: Any) -> bool:
        return bool(state["round"] >= self.rounds)

    def metrics(self, state: Any) -> dict[str, Any]:
        return {"loss": state["loss"]}
