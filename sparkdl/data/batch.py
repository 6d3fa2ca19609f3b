"""Batches, the types of their inputs, and the tensor dtypes of columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
}


@dataclass(frozen=True, eq=False)
class Ragged:
    """Concatenated rows of different lengths; rows may be empty.

    Rows are sliced like a tensor's. ``arguments`` converts them when the model is called.

    Attributes:
        values: values of all rows, ``[total, ...]``.
        bounds: int64 ``[rows + 1]``, on the CPU: row ``i`` has the values ``bounds[i]`` to ``bounds[i + 1]``; the first
            bound is 0, the last is ``total``.
        padding: fill value, if the model takes padded rows; None if it takes offsets.
    """

    values: Tensor
    bounds: Tensor
    padding: float | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        first, last, step = rows.indices(len(self))
        if step != 1:
            raise IndexError(f"ragged rows cannot be sliced with step {step}; expected 1.")
        bounds = self.bounds[first : max(first, last) + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        return replace(self, values=self.values[start:end], bounds=bounds - start)

    @property
    def nbytes(self) -> int:
        """Bytes of values and bounds."""
        return self.values.nbytes + self.bounds.nbytes

    @property
    def lengths(self) -> Tensor:
        """Number of values of each row, int64 ``[rows]``."""
        return self.bounds[1:] - self.bounds[:-1]

    def index_select(self, dim: int, rows: Tensor) -> Ragged:
        """Rows in any order, as ``Tensor.index_select`` gives them; raises IndexError if ``dim`` is not 0."""
        if dim != 0:
            raise IndexError(f"ragged rows cannot be selected along dimension {dim}; expected 0.")
        rows = rows.long()
        starts = self.bounds.index_select(0, rows)
        lengths = self.bounds.index_select(0, rows + 1) - starts
        bounds = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=bounds[1:])
        total = int(bounds[-1])
        shifts = torch.repeat_interleave(starts - bounds[:-1], lengths, output_size=total)
        return replace(self, values=self.values.index_select(0, shifts.add_(torch.arange(total))), bounds=bounds)

    def to(self, device: torch.device) -> Ragged:
        """Move the values to a device; bounds stay on the CPU, so that slicing never waits for the device."""
        if device.type == "cpu":
            return self
        return replace(self, values=self.values.pin_memory().to(device, non_blocking=True))

    def arguments(self) -> tuple[Tensor, Tensor]:
        """The two arguments of ``forward()``.

        Returns:
            Without padding: the values, and each row's first position in them, int64 ``[rows]``, as
            ``torch.nn.EmbeddingBag`` takes them. With padding: the values as ``[rows, longest row, ...]``, and a mask
            ``[rows, longest row]``, True at values.
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
"""An input column of a batch: a tensor ``[rows, ...]`` or ragged rows."""

Rows = TypeVar("Rows", Tensor, Ragged, Input)


def promote_ints(rows: Rows) -> Rows:
    """Convert 16 and 32 bit integers to int64, as the model takes them."""
    if isinstance(rows, Ragged):
        return replace(rows, values=promote_ints(rows.values))
    return rows.long() if rows.dtype in (torch.int16, torch.int32) else rows


def move_to(rows: Rows, device: torch.device | None) -> Rows:
    """Move rows to a device, on GPUs from pinned memory without waiting; 16 and 32 bit integers become int64."""
    if device is None or device.type == "cpu":
        return promote_ints(rows)
    moved = rows.to(device) if isinstance(rows, Ragged) else rows.pin_memory().to(device, non_blocking=True)
    return promote_ints(moved)  # there, so that half the bytes travel


def gather(rows: Rows, positions: Tensor, device: torch.device | None = None) -> Rows:
    """The rows at ``positions`` on the host, in pinned memory if they go to a GPU."""
    if device is None or device.type == "cpu" or isinstance(rows, Ragged):
        return rows.index_select(0, positions)
    pinned = torch.empty((len(positions), *rows.shape[1:]), dtype=rows.dtype, pin_memory=True)
    return torch.index_select(rows, 0, positions, out=pinned)


def device_tensors(inputs: Iterable[Input]) -> Iterator[Tensor]:
    """The tensors of inputs on their device; those of ragged rows are their values."""
    for rows in inputs:
        yield rows.values if isinstance(rows, Ragged) else rows


def arguments(inputs: Iterable[Input]) -> list[Tensor]:
    """The arguments of ``forward()``: one per tensor, two per ``Ragged``."""
    return [tensor for rows in inputs for tensor in (rows.arguments() if isinstance(rows, Ragged) else (rows,))]


@dataclass(frozen=True)
class Batch:
    """One worker's rows of one global step.

    Attributes:
        inputs: one tensor ``[rows, ...]`` or ``Ragged`` per input column, in the order of ``forward()``'s arguments.
        target: ``[rows, ...]``; None if the inputs are the target.
        weights: float ``[rows]``, each row's weight in the loss; None if all weigh 1.
        denominators: float64 ``[rows]``, each row's term in the loss's denominator; None if each is 1. Differs from
            ``weights`` if the loss has class weights or ignores labels.
        rows: rows of this batch; may be 0.
        weight: denominator of the batch's local mean loss: ``rows``, or the sum of ``denominators``.
        weight_fraction: this worker's weight over the step's global weight; the shares of a step sum to 1.
        micro_fraction: this batch's weight over its worker's weight in the step; below 1 only under gradient
            accumulation.
        total: rows of the global batch, equal on all workers.
        step_weight: weight of the global batch, equal on all workers: the sum of all workers' weights.
    """

    inputs: tuple[Input, ...]
    target: Tensor | None
    weights: Tensor | None
    denominators: Tensor | None
    rows: int
    weight: float
    weight_fraction: float
    micro_fraction: float = 1.0
    total: int = 0
    step_weight: float = 0.0

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of inputs, target and weights on the batch's device."""
        yield from device_tensors(self.inputs)
        yield from (tensor for tensor in (self.target, self.weights) if tensor is not None)

    @property
    def device(self) -> torch.device:
        """The device of the inputs."""
        return next(device_tensors(self.inputs)).device

    def to(self, device: torch.device) -> Batch:
        """The batch as it arrives on a device; ``denominators`` stay on the CPU."""
        return replace(
            self,
            inputs=tuple(move_to(rows, device) for rows in self.inputs),
            target=None if self.target is None else move_to(self.target, device),
            weights=None if self.weights is None else move_to(self.weights, device),
        )

    def split(self, pieces: int) -> Iterator[tuple[Batch, bool]]:
        """Split the rows into ``pieces`` micro-batches of nearly equal size, each with whether it is the last one.

        Every worker yields ``pieces`` of them; with fewer rows, some are empty. Their fractions sum to 1, so their
        gradients, each a local mean times its fraction, sum to the mean over this batch.
        """
        if pieces == 1:
            yield self, True
            return
        ends = [piece * self.rows // pieces for piece in range(pieces + 1)]
        for number, (first, end) in enumerate(itertools.pairwise(ends), start=1):
            yield self.cut(first, end, self.weight, self.total, micro=True), number == pieces

    def cut(self, first: int, last: int, weight: float, total: int, *, micro: bool = False) -> Batch:
        """The rows ``first`` to ``last``; their weight over ``weight`` is the (if ``micro``: micro) weight fraction."""
        denominators = None if self.denominators is None else self.denominators[first:last]
        local = float(last - first) if denominators is None else float(denominators.sum())
        share = local / weight if weight else 0.0
        return Batch(
            inputs=tuple([tensor[first:last] for tensor in self.inputs]),
            target=None if self.target is None else self.target[first:last],
            weights=None if self.weights is None else self.weights[first:last],
            denominators=denominators,
            rows=last - first,
            weight=local,
            weight_fraction=self.weight_fraction if micro else share,
            micro_fraction=share if micro else 1.0,
            total=total,
            step_weight=self.step_weight if micro else weight,
        )
