"""Batches, and the tensor dtypes that columns may have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Batch:
    """One member's rows of one global step.

    Attributes:
        inputs: one tensor ``[rows, ...]`` per input column, in the order ``forward()`` takes them.
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

    inputs: tuple[Tensor, ...]
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
