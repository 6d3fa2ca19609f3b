"""The objective over a part, without taking a step: its sum, its mass and its gradient; and the metrics of a round.

    F_k(w) = sum_{i in k} a_i l_i(w)      M_k = sum_{i in k} a_i m_i      L(w) = sum_k F_k(w) / sum_k M_k

with ``l_i``, ``a_i`` and ``m_i`` of ``sparkdl.training.loss``. Rows are taken a few thousand at a time, in row-id
order, and the model is in evaluation mode: without dropout, and with the statistics that it would predict with, the
objective is one function of the weights.

``Validation`` evaluates a round's weights over all parts in a round of its own: over the validation rows if there are
any; else metrics, if there are any, are over the training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.tasks import Jobs, Tensors
from sparkdl.data.batch import Batch
from sparkdl.data.batching import Batcher, row_bytes, stored_batch
from sparkdl.data.sampler import Plan, generator
from sparkdl.data.shard import Part
from sparkdl.data.transforms import Transforms
from sparkdl.rounds import add
from sparkdl.rounds.aggregation import scalars
from sparkdl.rounds.parameters import Weights, module_of
from sparkdl.telemetry.step_timer import end_step, enter
from sparkdl.training.evaluate import observe
from sparkdl.training.loss import Criterion
from sparkdl.training.metrics import Meter, open_metrics, seen, together
from sparkdl.training.objective import Objective, forward, trained

ROWS = 8192
"""Rows that the model sees at a time, at most."""

_CPU = torch.device("cpu")
_BYTES = 32 << 20  # and of what: wide rows come fewer at a time, since the model computes more of each


def alone(part: Part, criterion: Criterion) -> Part:
    """The part as if it were the only one, with what its rows weigh: its steps are its own."""
    return replace(part, index=0, count=1, parts=(part.rows,)).weighed(criterion.masses)


def shuffled(part: Part, size: int, seed: int, epoch: int) -> Iterator[Batch]:
    """A lone part's rows in the order of a seed and an epoch, ``size`` at a time, without batches of no weight."""
    for batch in Batcher(part, Plan((part.rows,), size, seed)).batches(epoch):
        if batch.weight:
            yield batch


def batches(part: Part, size: int | None = None) -> Iterator[Batch]:
    """A lone part's rows in row-id order, without batches of no weight.

    They come ``size`` at a time, by default ``ROWS``, and fewer where they are wide.

    Rows that lie in that order already are not copied, and are read in this thread: a linear model is done with rows
    sooner than a copy of them is made.
    """
    order = None if part.order is None or _lies_so(part.order) else part.order
    begin = int(part.order[0]) if part.order is not None and order is None else 0
    size = size or max(1, min(ROWS, _BYTES // max(1, row_bytes(part))))
    for first in range(0, part.rows, size):
        last = min(first + size, part.rows)
        chosen = slice(begin + first, begin + last) if order is None else order[first:last]
        batch = stored_batch(part, chosen)
        if part.transforms:
            batch = part.transforms(batch, generator(first))
        if batch.weight:
            yield batch


def mass_of(part: Part) -> float:
    """``M_k`` of a lone part."""
    if part.masses is None:
        return float(part.rows)
    # In row-id order, as the bits of a sum depend on it; and of these rows alone, where a part is some of those stored.
    return float((part.masses if part.order is None else part.masses.index_select(0, part.order)).sum())


def evaluate(objective: Objective, module: nn.Module, part: Part) -> tuple[Tensor, Tensor]:
    """The sum of the part's losses and their mass; gradients of the sum are added to the parameters'.

    The module is left in evaluation mode.

    Returns:
        ``F_k`` and ``M_k``, float64 scalars.
    """
    criterion = objective.criterion()
    module.eval()
    total, mass = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    enter("feed")
    for batch in batches(alone(part, criterion)):
        enter("forward")
        loss = trained(criterion(forward(module, batch.inputs), batch)) * batch.weight
        enter("backward")
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach().double()
        mass += batch.weight
        enter("feed")
    end_step(rows=part.rows)
    return total, mass


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


def _lies_so(order: Tensor) -> bool:
    """Whether the rows of an order are stored one behind the other."""
    return len(order) > 0 and torch.equal(order, torch.arange(len(order), dtype=order.dtype) + order[0])
