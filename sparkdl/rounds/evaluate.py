"""The objective over a part, without taking a step: its sum, its mass and its gradient.

    F_k(w) = sum_{i in k} a_i l_i(w)      M_k = sum_{i in k} a_i m_i      L(w) = sum_k F_k(w) / sum_k M_k

with ``l_i``, ``a_i`` and ``m_i`` of ``sparkdl.training.objective``. Rows are taken a few thousand at a time, in row-id
order, and the model is in evaluation mode: without dropout, and with the statistics that it would predict with, the
objective is one function of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparkdl.data.batch import Batch
from sparkdl.data.sampler import Plan, generator
from sparkdl.data.shard import Part
from sparkdl.telemetry.step_timer import end_step, enter
from sparkdl.training.objective import Criterion, Objective, forward, trained

ROWS = 8192
"""Rows that the model sees at a time, at most."""

_BYTES = 32 << 20  # and of what: wide rows come fewer at a time, since the model computes more of each


def alone(part: Part, criterion: Criterion) -> Part:
    """The part as if it were the only one, with what its rows weigh: its steps are its own."""
    return replace(part, index=0, count=1, parts=(part.rows,)).weighed(criterion.masses)


def shuffled(part: Part, size: int, seed: int, epoch: int) -> Iterator[Batch]:
    """A lone part's rows in the order of a seed and an epoch, ``size`` at a time, without batches of no weight."""
    for batch in part.batches(Plan((part.rows,), size, seed), epoch=epoch):
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
    size = size or max(1, min(ROWS, _BYTES // max(1, part.row_bytes)))
    for first in range(0, part.rows, size):
        last = min(first + size, part.rows)
        chosen = slice(begin + first, begin + last) if order is None else order[first:last]
        batch = part.batch(chosen)
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


def _lies_so(order: Tensor) -> bool:
    """Whether the rows of an order are stored one behind the other."""
    return len(order) > 0 and torch.equal(order, torch.arange(len(order), dtype=order.dtype) + order[0])
