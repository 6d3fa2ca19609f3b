"""Rows of partners: workers that compute one replica together run on the rows of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch, Input, Ragged
from sparkdl.errors import InvalidInput


def gather_rows(batch: Batch, partners: Group) -> Batch:
    """The batch with the rows of all partners in rank order, the same on each of them; a collective.

    Its ``weight`` and ``weight_fraction`` are the sums over the partners.

    Raises:
        InvalidInput: the rows of two partners differ in shape or dtype, for example because ``collate`` pads each batch
            to its own longest row.
    """
    if partners.size == 1:
        return batch
    mine = (batch.weight, batch.weight_fraction, batch.denominators is None, _kinds(batch) if batch.rows else None)
    weights, shares, unweighted, kinds = zip(*partners.gather(mine), strict=True)
    filled = [kind for kind in kinds if kind is not None]
    if any(kind != filled[0] for kind in filled):
        raise InvalidInput(
            f"workers that run on the same rows have rows of the kinds {filled}; expected equal ones. Let collate pad "
            "all batches to one length."
        )
    if filled and not batch.rows:  # collate did not see this batch
        columns, target = filled[0]
        empty = tuple([kind.empty(batch.device) for kind in columns])
        batch = replace(batch, inputs=empty, target=None if target is None else target.empty(batch.device))
    denominators = None
    if not all(unweighted):
        terms = torch.ones(batch.rows, dtype=torch.float64) if batch.denominators is None else batch.denominators
        denominators = _rows(terms, partners)
    inputs = tuple([_column(column, partners) for column in batch.inputs])
    return replace(
        batch,
        inputs=inputs,
        target=None if batch.target is None else _rows(batch.target, partners),
        weights=None if batch.weights is None else _rows(batch.weights, partners),
        denominators=denominators,
        rows=len(inputs[0]),
        weight=sum(weights),
        weight_fraction=sum(shares),
    )


@dataclass(frozen=True)
class _Kind:
    """What the rows of a column have in common."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    is_ragged: bool = False
    padding: float | None = None

    @staticmethod
    def of(column: Input) -> _Kind:
        if isinstance(column, Tensor):
            return _Kind(column.dtype, tuple(column.shape[1:]))
        return _Kind(column.values.dtype, tuple(column.values.shape[1:]), True, column.padding)

    def empty(self, device: torch.device) -> Any:
        values = torch.empty((0, *self.shape), dtype=self.dtype, device=device)
        return Ragged(values, torch.zeros(1, dtype=torch.int64), self.padding) if self.is_ragged else values


def _kinds(batch: Batch) -> tuple[list[_Kind], _Kind | None]:
    target = None if batch.target is None else _Kind.of(batch.target)
    return [_Kind.of(column) for column in batch.inputs], target


def _column(column: Input, partners: Group) -> Input:
    if isinstance(column, Tensor):
        return _rows(column, partners)
    bounds = F.pad(_rows(column.lengths, partners).cumsum(0), (1, 0))
    return replace(column, values=_rows(column.values, partners), bounds=bounds)


def _rows(tensor: Tensor, partners: Group) -> Tensor:
    return torch.cat(partners.all_to_all_rows([tensor] * partners.size))
