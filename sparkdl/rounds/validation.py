"""What the weights of a round are worth: losses and metrics over all parts, exact, in a round of its own.

It is taken over the validation rows where there are any. Else metrics, if there are any, are over the training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from sparkdl.cluster.tasks import Jobs, Tensors
from sparkdl.data.shard import Part
from sparkdl.data.transforms import Transforms
from sparkdl.rounds import add
from sparkdl.rounds.aggregation import scalars
from sparkdl.rounds.evaluate import alone, batches
from sparkdl.rounds.parameters import Weights, module_of
from sparkdl.training.evaluate import Meter, observe, open_metrics, seen, together
from sparkdl.training.objective import Objective

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Validation:
    """Evaluates weights; a ``RoundWork`` whose notes are what metrics have seen.

    Attributes:
        objective: the loss, and the metrics.
        transforms: what batches go through before they reach the model.
        held: whether over the validation rows; else over the others.
    """

    objective: Objective
    transforms: Transforms | None = None
    held: bool = True

    def map(self, state: Any, part: Part) -> tuple[Tensors, Any]:
        """See ``RoundWork``; the state has ``"weights"``."""
        criterion, metrics = self.objective.criterion(), open_metrics(self.objective.metrics, _CPU)
        meter = Meter(_CPU, metrics)
        if part.columns.validation is not None:
            part = part.subset(part.split()[int(self.held)], part.parts)
        own = replace(alone(part, criterion), transforms=self.transforms)
        observe(module_of(self.objective, state["weights"]), criterion, batches(own), meter)
        found = meter.state_dict()
        return scalars(loss=found["sum"], mass=found["weight"]), seen(metrics)

    def reduce(self, one: Tensors, other: Tensors) -> Tensors:
        """See ``RoundWork``: sums."""
        return add(one, other)

    def measure(self, jobs: Jobs, weights: Weights, number: int) -> dict[str, Any]:
        """What a row of the history says of the weights.

        Args:
            jobs: the parts.
            weights: of the model.
            number: of the round that they come from.

        Returns:
            ``valid_loss`` and ``valid_<metric>``; over training rows the metrics alone, by their own names.
        """
        found, notes = jobs.run(self, {"weights": weights}, number=number)
        values = together(open_metrics(self.objective.metrics, _CPU), notes)
        if not self.held:
            return values
        mass = float(found["mass"])
        loss = {"loss": float(found["loss"]) / mass if mass else float("nan")}
        return {f"valid_{name}": value for name, value in (loss | values).items()}
