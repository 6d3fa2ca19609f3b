"""The objective over a part, without taking a step: its sum, its mass and its gradient.

    F_k(w) = sum_{i in k} a_i l_i(w)      M_k = sum_{i in k} a_i m_i      L(w) = sum_k F_k(w) / sum_k M_k

with ``l_i``, ``a_i`` and ``m_i`` of ``sparkdl.objective``. Rows are taken a few thousand at a time, in row-id order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparkdl.feed.part import Part
from sparkdl.feed.sampling import Plan
from sparkdl.objective import Criterion, Objective
from sparkdl.tensors import Batch, arguments

ROWS = 8192
"""Rows that the model sees at a time."""


def alone(part: Part, criterion: Criterion) -> Part:
    """The part as if it were the only one, with what its rows weigh: its steps are its own."""
    return replace(part, index=0, count=1, parts=(part.rows,)).weighed(criterion.masses)


def batches(part: Part, size: int, *, seed: int | None = None, epoch: int = 0) -> Iterator[Batch]:
    """A lone part's rows ``size`` at a time, without batches that weigh nothing; shuffled where there is a seed."""
    plan = Plan((part.rows,), size, seed or 0, shuffle=seed is not None)
    for batch in part.batches(plan, epoch=epoch):
        if batch.weight:
            yield batch


def mass_of(part: Part) -> float:
    """``M_k`` of a lone part."""
    return float(part.rows if part.masses is None else part.masses.sum())


def evaluate(objective: Objective, module: nn.Module, part: Part) -> tuple[Tensor, Tensor]:
    """The sum of the part's losses and their mass; gradients of the sum are added to the parameters'.

    Returns:
        ``F_k`` and ``M_k``, float64 scalars.
    """
    criterion = objective.criterion()
    total, mass = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in batches(alone(part, criterion), ROWS):
        loss = criterion(module(*arguments(batch.inputs)), batch) * batch.weight
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach().double()
        mass += batch.weight
    return total, mass
