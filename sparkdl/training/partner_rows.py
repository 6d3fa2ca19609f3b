"""Rows of partners: workers that compute one replica together run on the rows of all of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch, Input


def gather_rows(batch: Batch, partners: Group) -> Batch:
    """The batch with the rows of all partners in rank order, the same on each of them; a collective."""
    if partners.size == 1:
        return batch
    template = _without_rows(batch) if batch.rows else None
    mine = (batch.weight, batch.weight_fraction, batch.denominators is None, template)
    weights, shares, unweighted, templates = zip(*partners.gather(mine), strict=True)
    if not batch.rows and any(templates):  # collate, which has made the rows of the others, does not see it
        first: Batch = next(one for one in templates if one is not None)
        batch = replace(batch, inputs=first.to(batch.device).inputs, target=first.to(batch.device).target)
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


def _without_rows(batch: Batch) -> Batch:
    inputs, target = [column[:0] for column in batch.inputs], None if batch.target is None else batch.target[:0].cpu()
    on_host = [one.cpu() if isinstance(one, Tensor) else replace(one, values=one.values.cpu()) for one in inputs]
    return replace(batch, inputs=tuple(on_host), target=target, weights=None, denominators=None)


def _column(column: Input, partners: Group) -> Input:
    if isinstance(column, Tensor):
        return _rows(column, partners)
    bounds = F.pad(_rows(column.lengths, partners).cumsum(0), (1, 0))
    return replace(column, values=_rows(column.values, partners), bounds=bounds)


def _rows(tensor: Tensor, partners: Group) -> Tensor:
    return torch.cat(partners.all_to_all_rows([tensor] * partners.size))
