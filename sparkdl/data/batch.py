"""Batches, what their inputs may be, and the tensor dtypes that columns may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of several lengths, one behind the other; some of them may be empty.

    It is cut by rows like a tensor, and becomes two arguments of ``forward()`` only when the model is called.

    Attributes:
        values: the rows' values, ``[total, ...]``.
        bounds: int64 ``[rows + 1]``, on the CPU: row ``i`` has the values from ``bounds[i]`` to ``bounds[i + 1]``;
            the first bound is 0 and the last one ``total``.
        padding: what fills up short rows where the model takes rows of one length; None where it takes offsets.
    """

    values: Tensor
    bounds: Tensor
    padding: float | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        first, last, step = rows.indices(len(self))
        if step != 1:
            raise IndexError(f"rows of several lengths are cut in their order; a step of {step} was asked for.")
        bounds = self.bounds[first : max(first, last) + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        return replace(self, values=self.values[start:end], bounds=bounds - start)

    @property
    def nbytes(self) -> int:
        """Bytes of values and bounds."""
        return self.values.nbytes + self.bounds.nbytes

    @property
    def lengths(self) -> Tensor:
        """How many values each row has, int64 ``[rows]``."""
        return self.bounds[1:] - self.bounds[:-1]

    def index_select(self, dim: int, rows: Tensor) -> Ragged:
        """Rows in any order, as ``Tensor.index_select`` gives them; only ``dim`` 0 has rows of several lengths."""
        if dim != 0:
            raise IndexError(f"rows of several lengths lie along dimension 0; {dim} was asked for.")
        rows = rows.long()
        starts = self.bounds.index_select(0, rows)
        lengths = self.bounds.index_select(0, rows + 1) - starts
        bounds = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=bounds[1:])
        total = int(bounds[-1])
        shifts = torch.repeat_interleave(starts - bounds[:-1], lengths, output_size=total)
        return replace(self, values=self.values.index_select(0, shifts.add_(torch.arange(total))), bounds=bounds)

    def to(self, device: torch.device) -> Ragged:
        """The rows with their values on a device; bounds stay, so that cutting never waits for it."""
        if device.type == "cpu":
            return self
        return replace(self, values=self.values.pin_memory().to(device, non_blocking=True))

    def arguments(self) -> tuple[Tensor, Tensor]:
        """The two arguments of ``forward()``.

        Returns:
            Without padding the values and each row's first position among them, int64 ``[rows]``, as
            ``torch.nn.EmbeddingBag`` takes them. With padding the values as ``[rows, longest row, ...]``, and a mask
            ``[rows, longest row]`` that is True where there is a value.
        """
        device = self.values.device
        if self.padding is None:
            return self.values, self.bounds[:-1].to(device)
        lengths, shape = self.lengths, self.values.shape[1:]
        longest = int(lengths.max()) if len(self) else 0
        mask = torch.arange(longest, device=device) < lengths.to(device).unsqueeze(1)
        padded = self.values.new_full((len(self), longest, *shape), self.padding)
        return padded.masked_scatter_(mask.view(*mask.shape, *(1 for _ in shape)), self.values), mask


Input = Tensor | Ragged
"""What an input column is in a batch: a tensor ``[rows, ...]``, or rows of several lengths."""

Rows = TypeVar("Rows", Tensor, Ragged, Input)


def wide(rows: Rows) -> Rows:
    """Rows with integers of 16 and 32 bits as int64, as the model gets them."""
    if isinstance(rows, Ragged):
        return replace(rows, values=wide(rows.values))
    return rows.long() if rows.dtype in (torch.int16, torch.int32) else rows


def arguments(inputs: Iterable[Input]) -> list[Tensor]:
    """The arguments of ``forward()``: one for each tensor, two for each ``Ragged``."""
    found: list[Tensor] = []
    for each in inputs:
        if isinstance(each, Ragged):
            found.extend(each.arguments())
        else:
            found.append(each)
    return found


@dataclass(frozen=True)
class Batch:
    """One member's rows of one global step.

    Attributes:
        inputs: one tensor ``[rows, ...]`` or ``Ragged`` per input column, in the order ``forward()`` takes them.
        target: ``[rows, ...]``, or None where the target is the inputs.
        weights: float ``[rows]``, each row's weight in the loss, or None where all weigh 1.
        masses: float64 ``[rows]``, what each row adds to the loss's denominator, or None where each adds 1. It
            differs from ``weights`` where the loss has class weights or ignored labels of its own.
        rows: rows in this batch; may be 0.
        weight: what the batch's summed loss is divided by to give its local mean: ``rows``, or the sum of
            ``masses``.
        share: this member's weight over the global weight of the step; the shares of a step sum to 1.
        fraction: this batch's weight over its member's weight in the step: 1 unless the member's rows are cut
            into several batches for gradient accumulation.
        total: rows of the whole global batch, the same on every member.
    """

    inputs: tuple[Input, ...]
    target: Tensor | None
    weights: Tensor | None
    masses: Tensor | None
    rows: int
    weight: float
    share: float
    fraction: float = 1.0
    total: int = 0

    def split(self, pieces: int) -> Iterator[Batch]:
        """Cut the rows into ``pieces`` batches of nearly equal size, for gradient accumulation.

        Every member yields the same number of pieces, some of them empty where it has fewer rows than that. The
        pieces' fractions sum to 1, so that their gradients, each a mean over its own rows, sum to the mean over
        this batch.
        """
        if pieces == 1:
            yield self
            return
        for piece in range(pieces):
            first, last = piece * self.rows // pieces, (piece + 1) * self.rows // pieces
            yield self._slice(first, last)

    def _slice(self, first: int, last: int) -> Batch:
        rows = last - first
        masses = None if self.masses is None else self.masses[first:last]
        weight = float(rows) if masses is None else float(masses.sum())
        return replace(
            self,
            inputs=tuple(tensor[first:last] for tensor in self.inputs),
            target=None if self.target is None else self.target[first:last],
            weights=None if self.weights is None else self.weights[first:last],
            masses=masses,
            rows=rows,
            weight=weight,
            fraction=weight / self.weight if self.weight else 0.0,
        )
