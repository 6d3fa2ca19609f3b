"""A worker's shard: one partition's rows as re-readable tensors in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from sparkdl.data.batch import DTYPES, Input
from sparkdl.data.columns import Columns, InputColumn
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput

_CHUNK = 1 << 21  # bytes of a column read at a time, so that they stay in the cache
_MOST = 1 << 16  # rows read at a time


@dataclass(frozen=True)
class Shard:
    """A shard: one partition's rows, in row-id order.

    Attributes:
        index: index of the shard, from 0; equals the worker's rank.
        count: number of shards.
        rows: rows of this shard; may be 0.
        shard_rows: rows of every shard, by index.
        columns: roles of the tensors.
        tensors: column name -> memory-mapped tensor ``[stored rows, *shape]`` or ``Ragged`` rows, in order of arrival.
        order: stored position of each row, ``[rows]``; None if rows are stored in order.
        denominators: each stored row's term in the loss's denominator, float64 ``[stored rows]``; None if each term is
            1.
        transforms: changes each batch if the ``Batcher`` has no transforms; default: none.
    """

    index: int
    count: int
    rows: int
    shard_rows: tuple[int, ...]
    columns: Columns
    tensors: dict[str, Input]
    order: Tensor | None = None
    denominators: Tensor | None = None
    transforms: Transforms | None = None

    def split(self) -> tuple[Tensor, Tensor]:
        """Positions of the training and of the validation rows; raises InvalidInput without a validation column."""
        if self.columns.validation is None:
            raise InvalidInput("there is no validation column to split by.")
        values = numbers(self.tensors, self.columns.validation.name)
        flags = values.bool()
        if not torch.equal(flags, values.to(torch.float64) == 1):
            name = self.columns.validation.name
            raise InvalidInput(f"validation column {name!r} has values other than 0 and 1; expected booleans.")
        flags = flags if self.order is None else flags[self.order]
        return torch.nonzero(~flags).flatten(), torch.nonzero(flags).flatten()

    def subset(self, positions: Tensor, shard_rows: tuple[int, ...]) -> Shard:
        """The shard with its rows at ``positions`` only; ``shard_rows`` are the rows that every shard keeps."""
        order = positions if self.order is None else self.order[positions]
        return replace(self, rows=len(positions), shard_rows=shard_rows, order=order)

    def with_denominators(self, denominators: Callable[[Tensor], Tensor | None]) -> Shard:
        """The shard with the loss's denominator terms: the loss's weight of the target times the row's weight.

        Args:
            denominators: targets ``[B, ...]`` -> float64 ``[B]``, or None if each weight is 1.

        Raises:
            InvalidInput: a row's weight is negative.
        """
        terms = Denominators(self, denominators)
        scan(self, terms)
        return self if terms.values is None else replace(self, denominators=terms.values)

    def denominator(self) -> float:
        """The rows' weight in the loss: the sum of their denominator terms."""
        if self.denominators is None:
            return float(self.rows)
        # In row-id order, on which the rounding of a sum depends. A subset's order leaves out other stored rows.
        terms = self.denominators if self.order is None else self.denominators.index_select(0, self.order)
        return float(terms.sum())

    def with_unit_denominators(self) -> Shard:
        """The shard with explicit denominator terms of 1, for a gang in which other shards have terms."""
        return replace(self, denominators=torch.ones(self._stored_rows(), dtype=torch.float64))

    def _stored_rows(self) -> int:
        return len(next(iter(self.tensors.values())))


class Visitor(Protocol):
    """Learns something of a shard's stored rows."""

    @property
    def names(self) -> Sequence[str]:
        """The columns that it reads."""

    def visit(self, first: int, rows: Mapping[str, Input]) -> None:
        """Read the columns of consecutive stored rows; ``first`` is the number of the first of these rows."""


def scan(shard: Shard, *visitors: Visitor) -> None:
    """Read the stored rows of a shard once, for all visitors."""
    columns = {name: shard.tensors[name] for visitor in visitors for name in visitor.names}
    count = shard._stored_rows()
    largest = max([1, *(column.nbytes for column in columns.values())])
    step = max(1, min(_MOST, _CHUNK * max(1, count) // largest))
    for first in range(0, count if columns else 0, step):
        rows = {name: column[first : first + step] for name, column in columns.items()}
        for visitor in visitors:
            visitor.visit(first, rows)


class Denominators:
    """Each stored row's term in the loss's denominator: the loss's weight of the target times the row's weight.

    Attributes:
        values: float64 ``[stored rows]`` after the scan; None if each term is 1.
    """

    def __init__(self, shard: Shard, of_targets: Callable[[Tensor], Tensor | None]) -> None:
        self._columns, self._count, self._of_targets = shard.columns, shard._stored_rows(), of_targets
        weight = [] if shard.columns.weight is None else [shard.columns.weight.name]
        self.names = [*(column.name for column in shard.columns.targets), *weight]
        # A shard without rows has weights, too.
        self.values = torch.empty(0, dtype=torch.float64) if weight and not self._count else None

    def visit(self, first: int, rows: Mapping[str, Input]) -> None:
        """Compute the terms of some rows; raises InvalidInput if a row's weight is negative."""
        target, weight = target_of(rows, self._columns), self._columns.weight
        terms = None if target is None else self._of_targets(target)
        if weight is not None:
            weights = numbers(rows, weight.name).to(torch.float64)
            if bool((weights < 0).any()):
                least = float(weights.min())
                raise InvalidInput(f"weight column {weight.name!r} holds {least}; expected weights of at least 0.")
            terms = weights if terms is None else terms * weights
        if terms is not None:
            self.values = torch.ones(self._count, dtype=torch.float64) if self.values is None else self.values
            self.values[first : first + len(terms)] = terms


def numbers(tensors: Mapping[str, Input], name: str) -> Tensor:
    """The tensor of a column that is not ragged."""
    tensor = tensors[name]
    assert isinstance(tensor, Tensor)
    return tensor


def converted(tensors: Mapping[str, Input], column: InputColumn) -> Tensor:
    """The tensor of a column that is not ragged, in this use's dtype; an input of the same name may keep integers."""
    tensor = numbers(tensors, column.name)
    return tensor if column.dtype is None else tensor.to(DTYPES[column.dtype])


def target_of(rows: Mapping[str, Input], columns: Columns) -> Tensor | None:
    """Target of some rows: one column's tensor, or several columns stacked to ``[rows, columns]``; None without one."""
    if columns.target is None or isinstance(columns.target, InputColumn):
        return None if columns.target is None else converted(rows, columns.target)
    return torch.stack([converted(rows, column) for column in columns.targets], 1)
