"""One partition as re-readable tensors in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.data.arrow import decode_ragged
from sparkdl.data.batch import Batch, Input, Ragged
from sparkdl.data.columns import Column, Columns
from sparkdl.data.prefetch import prefetch
from sparkdl.data.sampler import Plan, generator
from sparkdl.data.transforms import Transforms
from sparkdl.errors import InvalidInput

Rows = TypeVar("Rows", Tensor, Ragged, Input)

_GATHER_BYTES = 4 << 20  # rows gathered at a time: enough to make the thread's hand-over cheap, little enough to cache
_GATHER_STEPS = 64
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
        transforms: what batches go through where ``batches`` is told nothing of it; None for nothing.
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
            target = _target(labels, self.columns)
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

    def step_weights(self, plan: Plan, epoch: int) -> Tensor:
        """This part's weight in every step of an epoch, float64 ``[steps]``."""
        if self.masses is None:
            return torch.tensor([plan.count(self.index, step) for step in range(plan.steps)], dtype=torch.float64)
        masses = self.masses[self._positions(plan, epoch)]
        bounds = [plan.offset(self.index, step) for step in range(plan.steps + 1)]
        pairs = itertools.pairwise(bounds)
        return torch.tensor([float(masses[first:last].sum()) for first, last in pairs], dtype=torch.float64)

    def batches(
        self,
        plan: Plan,
        *,
        epoch: int,
        start: int = 0,
        totals: Sequence[float] | None = None,
        device: torch.device | str = "cpu",
        transforms: Transforms | None = None,
    ) -> Iterator[Batch]:
        """This member's batches of an epoch, one for every step.

        Args:
            plan: how rows are dealt into steps; made from the same ``parts`` on every member.
            epoch: the epoch, from 0; it chooses the permutation.
            start: the first step wanted.
            totals: the global weight of each step; None where every row weighs 1.
            device: where the tensors are wanted.
            transforms: what each batch goes through on the CPU, ahead of time; None for the part's own.
        """
        if plan.rows != self.parts:
            raise InvalidInput(f"the plan is for parts of {plan.rows} rows; expected {self.parts}.")
        device, transforms = torch.device(device), self.transforms if transforms is None else transforms
        if transforms:
            yield from prefetch(self._transformed(transforms, plan, epoch, start, totals=totals, device=device))
            return
        chunks = self._chunks(plan, epoch, start, device)
        # A single chunk is waited for either way, and a thread would take longer than a few rows.
        for chunk in chunks if self._chunk_steps(plan) >= plan.steps - start else prefetch(chunks):
            yield from self._cut(plan, chunk, totals)

    def batch(self, chosen: slice | Tensor) -> Batch:
        """Stored rows at these positions as a batch by itself; those of a slice are not copied."""
        found = {name: wide(_taken(self.tensors[name], chosen)) for name in self._fed()}
        masses = None if self.masses is None else _taken(self.masses, chosen)
        weight, rows = self.columns.weight, len(next(iter(found.values())))
        return Batch(
            inputs=tuple([found[column.name] for column in self.columns.inputs]),
            target=_target(found, self.columns),
            weights=None if weight is None else numbers(found, weight.name),
            masses=masses,
            rows=rows,
            weight=float(rows) if masses is None else float(masses.sum()),
            share=1.0,
            total=rows,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes that a row of a batch has, about."""
        return sum(_row_bytes(self.tensors[name]) for name in self._fed())

    def _positions(self, plan: Plan, epoch: int) -> Tensor:
        positions = plan.permutation(self.index, epoch)
        if self.order is not None:
            for first in range(0, self.rows, _SCAN_ROWS):  # in place: a large part's positions are 100 MB
                piece = positions[first : first + _SCAN_ROWS]
                piece.copy_(self.order[piece])
        return positions

    def _transformed(
        self,
        transforms: Transforms,
        plan: Plan,
        epoch: int,
        start: int,
        *,
        totals: Sequence[float] | None,
        device: torch.device,
    ) -> Iterator[Batch]:
        """Batches one by one; their random numbers depend on nothing but the seed, the epoch and their position."""
        step = start
        for chunk in self._chunks(plan, epoch, start, torch.device("cpu")):
            for batch in self._cut(plan, chunk, totals):
                made = transforms(batch, generator(plan.seed, epoch, step, self.index))
                yield replace(
                    made,
                    inputs=tuple(_arrive(each, device) for each in made.inputs),
                    target=None if made.target is None else _arrive(made.target, device),
                    weights=None if made.weights is None else _arrive(made.weights, device),
                )
                step += 1

    def _chunks(self, plan: Plan, epoch: int, start: int, device: torch.device) -> Iterator[_Chunk]:
        """Gathered rows of several steps at a time."""
        positions = self._positions(plan, epoch)
        fed, steps = self._fed(), self._chunk_steps(plan)
        for first in range(start, plan.steps, steps):
            bounds = [plan.offset(self.index, step) for step in range(first, min(first + steps, plan.steps) + 1)]
            chosen = positions[bounds[0] : bounds[-1]]
            rows = {name: _arrive(self.tensors[name].index_select(0, chosen), device) for name in fed}
            masses = None if self.masses is None else self.masses.index_select(0, chosen)
            target = _target(rows, self.columns)
            yield _Chunk(first, [bound - bounds[0] for bound in bounds], rows, target, masses)

    def _fed(self) -> list[str]:
        """Names of the columns that batches are made of."""
        single = (*self.columns.targets, self.columns.weight)
        return [column.name for column in (*self.columns.inputs, *single) if column]

    def _chunk_steps(self, plan: Plan) -> int:
        step_bytes = self.row_bytes * plan.batch_size * self.rows // max(1, plan.total)
        return max(1, min(_GATHER_STEPS, _GATHER_BYTES // max(1, step_bytes)))

    def _cut(self, plan: Plan, chunk: _Chunk, totals: Sequence[float] | None) -> Iterator[Batch]:
        target, weight = chunk.target, self.columns.weight
        inputs = [chunk.rows[column.name] for column in self.columns.inputs]
        weights = None if weight is None else numbers(chunk.rows, weight.name)
        for piece, (first, last) in enumerate(zip(chunk.bounds, chunk.bounds[1:], strict=False)):
            step = chunk.first + piece
            masses = None if chunk.masses is None else chunk.masses[first:last]
            mass = float(last - first) if masses is None else float(masses.sum())
            size = plan.size(step)
            total = size if totals is None else totals[step]
            yield Batch(
                inputs=tuple([tensor[first:last] for tensor in inputs]),
                target=None if target is None else target[first:last],
                weights=None if weights is None else weights[first:last],
                masses=masses,
                rows=last - first,
                weight=mass,
                share=mass / total if total else 0.0,
                total=size,
            )

    def _stored_rows(self) -> int:
        return len(next(iter(self.tensors.values())))

    def _weights(self, name: str, rows: slice) -> Tensor:
        weights = numbers(self.tensors, name)[rows].to(torch.float64)
        if bool((weights < 0).any()):
            raise InvalidInput(f"weight column {name!r} holds {float(weights.min())}; expected weights of at least 0.")
        return weights


@dataclass(frozen=True)
class _Chunk:
    """The rows of a few steps: step ``first + i`` has the rows from ``bounds[i]`` to ``bounds[i + 1]``."""

    first: int
    bounds: list[int]
    rows: dict[str, Input]
    target: Tensor | None
    masses: Tensor | None


def numbers(tensors: Mapping[str, Input], name: str) -> Tensor:
    """The tensor of a column whose rows all have one shape."""
    found = tensors[name]
    assert isinstance(found, Tensor)
    return found


def ragged(array: pa.Array, column: Column, *, floating: str, finite: bool = True) -> Ragged:
    """One Arrow array of lists of several lengths as the rows that a batch has of it; see ``decode``."""
    values, bounds = decode_ragged(array, column, floating=floating, finite=finite)
    tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
    return wide(Ragged(tensor, torch.from_numpy(bounds), column.padding if column.ragged == "padded" else None))


def wide(rows: Rows) -> Rows:
    """Rows with integers of 16 and 32 bits as int64, as the model gets them."""
    if isinstance(rows, Ragged):
        return replace(rows, values=wide(rows.values))
    return rows.long() if rows.dtype in (torch.int16, torch.int32) else rows


def _target(rows: Mapping[str, Input], columns: Columns) -> Tensor | None:
    """The target of some rows: a column's own, or several columns side by side, ``[rows, columns]``."""
    if columns.target is None or isinstance(columns.target, Column):
        return None if columns.target is None else numbers(rows, columns.target.name)
    return torch.stack([numbers(rows, column.name) for column in columns.targets], 1)


def _taken(rows: Rows, chosen: slice | Tensor) -> Rows:
    return rows[chosen] if isinstance(chosen, slice) else rows.index_select(0, chosen)


def _row_bytes(tensor: Input) -> int:
    return tensor.nbytes // max(1, len(tensor))


def _arrive(rows: Rows, device: torch.device) -> Rows:
    """Rows as the model gets them, on the device."""
    rows = wide(rows)
    if isinstance(rows, Ragged):
        return rows.to(device)
    return rows if device.type == "cpu" else rows.pin_memory().to(device, non_blocking=True)
