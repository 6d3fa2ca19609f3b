"""The objective over a shard without training: loss, denominator, gradient and metrics.

    F_k(w) = sum_{i in k} a_i l_i(w)      M_k = sum_{i in k} a_i m_i      L(w) = sum_k F_k(w) / sum_k M_k

``l_i``, ``a_i`` and ``m_i`` are defined in ``sparkdl.training.objective.loss``. In evaluation mode, without dropout and
with fixed statistics, ``L`` is a function of the weights alone. Batches are in row-id order.

``Validation`` evaluates weights over all shards in a round of its own: loss and metrics on the validation rows. If
there are none, it evaluates metrics on the training rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl.cluster.tasks import TaskRunner, Tensors
from sparkdl.data.batch import Batch
from sparkdl.data.batching import row_bytes, stored_batch
from sparkdl.data.sampler import generator
from sparkdl.data.shard import Shard
from sparkdl.data.transforms import Transforms
from sparkdl.rounds import add
from sparkdl.rounds.aggregation import scalars
from sparkdl.rounds.parameters import Weights, module_of
from sparkdl.telemetry.step_timer import end_step, enter_phase
from sparkdl.training.objective.loss import Criterion, forward, trained
from sparkdl.training.objective.metrics import MetricAccumulator, local_states, observe, open_metrics, together
from sparkdl.training.objective.objective import Objective

ROWS = 8192
"""Most rows of a batch."""

_CPU = torch.device("cpu")
_BYTES = 32 << 20  # most bytes of a batch: wide rows need more memory in the model


def as_only_shard(shard: Shard, criterion: Criterion) -> Shard:
    """The shard as the only one of a run, with its rows' weights in the loss."""
    return as_only(shard).with_denominators(criterion.denominators)


def as_only(shard: Shard) -> Shard:
    """The shard as the only one of a run."""
    return replace(shard, index=0, count=1, shard_rows=(shard.rows,))


def batches(shard: Shard, size: int | None = None, device: torch.device = _CPU) -> Iterator[Batch]:
    """Batches of a single shard in row-id order, on a device; batches of weight 0 are skipped.

    A batch has ``size`` rows, by default at most ``ROWS``, fewer if rows are wide. Contiguous rows are not copied, and
    no thread reads ahead: a linear model takes less time than the copy.
    """
    order, begin = shard.order, 0
    if order is not None and len(order) and torch.equal(order, torch.arange(len(order), dtype=order.dtype) + order[0]):
        begin, order = int(order[0]), None  # contiguous
    size = size or max(1, min(ROWS, _BYTES // max(1, row_bytes(shard))))
    for first in range(0, shard.rows, size):
        last = min(first + size, shard.rows)
        chosen = slice(begin + first, begin + last) if order is None else order[first:last]
        batch = stored_batch(shard, chosen)
        if shard.transforms:
            batch = shard.transforms(batch, generator(first))
        if batch.weight:
            yield batch.to(device)


def summed_losses(
    objective: Objective, module: nn.Module, shard: Shard, rows: Iterable[Batch] | None = None
) -> Iterator[tuple[Tensor, float]]:
    """The summed loss and the denominator of each batch of a single shard, in evaluation mode, for backward passes.

    ``rows`` are the shard's batches; by default they are read on the objective's device.
    """
    criterion = objective.criterion()
    module.eval()
    enter_phase("feed")
    for batch in batches(shard, device=objective.device) if rows is None else rows:
        enter_phase("forward")
        loss = trained(criterion(forward(module, batch.inputs), batch)) * batch.weight
        enter_phase("backward")
        yield loss, batch.weight
        enter_phase("feed")
    end_step(rows=shard.rows)


def evaluate(objective: Objective, module: nn.Module, shard: Shard) -> tuple[Tensor, Tensor]:
    """``F_k`` and ``M_k`` of a shard, float64 scalars on the CPU.

    It adds the gradient of ``F_k`` to the parameters' ``grad``, and leaves the module in evaluation mode.
    """
    denominator = torch.zeros((), dtype=torch.float64)
    total = denominator.to(objective.device, copy=True)
    for loss, weight in summed_losses(objective, module, as_only_shard(shard, objective.criterion())):
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach().double()
        denominator += weight
    return total.cpu(), denominator


@dataclass(frozen=True)
class Validation:
    """Evaluates weights over all shards: a ``MapReduce`` whose notes are metric states."""

    objective: Objective
    transforms: Transforms | None = None
    validation: bool = True  # whether to evaluate the validation rows; else the training rows
    device: torch.device = _CPU

    reduce = staticmethod(add)

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        """Evaluate ``state["weights"]`` on a shard."""
        objective = replace(self.objective, device=self.device)
        criterion, metrics = objective.criterion(), open_metrics(objective.metrics, self.device)
        meter = MetricAccumulator(self.device, metrics)
        if shard.columns.validation is not None:
            shard = shard.subset(shard.split()[int(self.validation)], shard.shard_rows)
        shard = replace(as_only_shard(shard, criterion), transforms=self.transforms)
        module = module_of(objective, state["weights"])
        rows = batches(shard, device=self.device)
        observe(module, lambda batch: forward(module, batch.inputs), criterion, rows, meter)
        return scalars(**meter.state_dict()), local_states(metrics)

    def measure(self, jobs: TaskRunner, weights: Weights, number: int = 0) -> dict[str, Any]:
        """Evaluate weights, in a round: the loss, which is NaN without weight, and the metrics by their names."""
        sums, notes = jobs.run(self, {"weights": weights}, number=number)
        metrics = together(open_metrics(self.objective.metrics, _CPU), notes)
        return {"loss": float(sums["sum"] / sums["weight"])} | metrics
