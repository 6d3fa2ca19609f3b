"""One partition as re-readable tensors in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparkdl.data.batch import Input
from sparkdl.data.columns import Column, Columns
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput

_SCAN_ROWS = 1 << 20


@dataclass(frozen=True)
class Part:
    """One partition's rows, in row-id order.

    Attributes:
        index: which part this is, from 0; the rank of the member that reads it.
        count: how many parts there are.
        rows: rows of this part; may be 0.
        parts: rows of every part, by index.
        columns: what the tensors are for.
        tensors: column name -> memory-mapped tensor ``[stored rows, *shape]``, or ``Ragged`` rows, in the order of
            arrival.
        order: stored position of each row, ``[rows]``; None where they are the same.
        masses: what each stored row adds to the loss's denominator, float64; None where each adds 1.
        transforms: functions that change each batch where a ``Batcher`` has none of its own; None for none.
    """

    index: int
    count: int
    rows: int
    parts: tuple[int, ...]
    columns: Columns
    tensors: dict[str, Input]
    order: Tensor | None = None
    masses: Tensor | None = None
    transforms: Transforms | None = None

    def split(self) -> tuple[Tensor, Tensor]:
        """Positions of the training and of the validation rows, by the validation column."""
        if self.columns.validation is None:
            raise InvalidInput("there is no validation column to split by.")
        flags = numbers(self.tensors, self.columns.validation.name).bool()
        flags = flags if self.order is None else flags[self.order]
        return torch.nonzero(~flags).flatten(), torch.nonzero(flags).flatten()

    def subset(self, positions: Tensor, parts: tuple[int, ...]) -> Part:
        """The part's rows at ``positions``; ``parts`` are the rows that every part keeps."""
        order = positions if self.order is None else self.order[positions]
        return replace(self, rows=len(positions), parts=parts, order=order)

    def weighed(self, masses: Callable[[Tensor], Tensor | None]) -> Part:
        """The part with the masses that a loss gives to its targets, times the rows' weights.

        Args:
            masses: targets ``[B, ...]`` -> float64 ``[B]``, or None where each row adds 1.
        """
        targets, weight = self.columns.targets, self.columns.weight
        found: Tensor | None = None
        for first in range(0, self._stored_rows(), _SCAN_ROWS):
            rows = slice(first, min(first + _SCAN_ROWS, self._stored_rows()))
            labels: dict[str, Input] = {column.name: self.tensors[column.name][rows] for column in targets}
            target = target_of(labels, self.columns)
            each = None if target is None else masses(target)
            if weight is not None:
                weights = self._weights(weight.name, rows)
                each = weights if each is None else each * weights
            if each is not None:
                found = torch.ones(self._stored_rows(), dtype=torch.float64) if found is None else found
                found[rows] = each
        if found is None and weight is not None:  # a part without rows
            found = torch.empty(0, dtype=torch.float64)
        return self if found is None else replace(self, masses=found)

    def with_unit_masses(self) -> Part:
        """The part with masses of 1, for members whose peers have others."""
        return replace(self, masses=torch.ones(self._stored_rows(), dtype=torch.float64))

    def _stored_rows(self) -> int:
        return len(next(iter(self.tensors.values())))

    def _weights(self, name: str, rows: slice) -> Tensor:
        weights = numbers(self.tensors, name)[rows].to(torch.float64)
        if bool((weights < 0).any()):
            raise InvalidInput(f"weight column {name!r} holds {float(weights.min())}; expected weights of at least 0.")
        return weights


def numbers(tensors: Mapping[str, Input], name: str) -> Tensor:
    """The tensor of a column whose rows all have one shape."""
    found = tensors[name]
    assert isinstance(found, Tensor)
    return found


def target_of(rows: Mapping[str, Input], columns: Columns) -> Tensor | None:
    """The target of some rows: a column's own, or several columns side by side, ``[rows, columns]``."""
    if columns.target is None or isinstance(columns.target, Column):
        return None if columns.target is None else numbers(rows, columns.target.name)
    return torch.stack([numbers(rows, column.name) for column in columns.targets], 1)
