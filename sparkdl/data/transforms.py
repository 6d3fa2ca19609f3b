"""User functions that change batches, in the prefetch thread.

Both functions receive each input column as a tensor ``[rows, ...]`` or as ``Ragged`` rows. They may change values,
shapes and the number of inputs. They must keep the rows and their loss weights, which all workers have agreed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparkdl.data.batch import Batch, Input, Ragged
from sparkdl.errors import InvalidInput

Inputs = tuple[Input, ...]
Collate = Callable[[Inputs, "Tensor | None"], tuple[Sequence[Input], "Tensor | None"]]
"""``collate(inputs, target)``, for every batch; the target is None in inference and without a label column."""
Augment = Callable[[Inputs, "Tensor | None", torch.Generator], tuple[Sequence[Input], "Tensor | None"]]
"""``augment(inputs, target, generator)``, for training batches, before ``collate``; draw from ``generator`` only."""


@dataclass(frozen=True)
class AssembledInputs:
    """A ``collate`` that concatenates the inputs side by side, into one ``[rows, numbers]``.

    Attributes:
        collate: applied to the one input; default: none.
        floating: the dtype's name of the input if all are integers; other inputs are promoted to a common dtype.
    """

    collate: Collate | None = None
    floating: str = "float32"

    @classmethod
    def around(cls, collate: Collate | None, *, assembled: bool, floating: str) -> Collate | None:
        """``collate``, which gets one input if the inputs are ``assembled``."""
        return cls(collate, floating) if assembled else collate

    def __call__(self, inputs: Inputs, target: Tensor | None) -> tuple[Sequence[Input], Tensor | None]:
        """Concatenate the inputs of a batch; raises InvalidInput for an integer that the dtype would round."""
        rows = [tensor.reshape(len(tensor), -1) for tensor in inputs if isinstance(tensor, Tensor)]
        if len(rows) < len(inputs):
            raise InvalidInput("assembleInputs is True, and an input has rows of several lengths; expected one length.")
        numbers = torch.cat(rows, 1)
        numbers = numbers if numbers.is_floating_point() else numbers.to(getattr(torch, self.floating))
        integers = [row for row in rows if row.dtype in (torch.int32, torch.int64) and row.numel()]
        largest = max((max(-int(low), int(high)) for low, high in map(torch.aminmax, integers)), default=0)
        if largest > 2 / torch.finfo(numbers.dtype).eps:
            raise InvalidInput(
                f"assembleInputs is True, and {self.floating} rounds integers like {largest}. Leave an id out, or give "
                "it an input of its own, for an embedding; cast a quantity to double, or set precision='fp64'."
            )
        return ((numbers,), target) if self.collate is None else self.collate((numbers,), target)


@dataclass(frozen=True)
class Transforms:
    """User functions that change batches, and the loss's weight of each row's target, to detect changed weights."""

    collate: Collate | None = None
    augment: Augment | None = None
    denominators: Callable[[Tensor], Tensor | None] | None = None

    def __bool__(self) -> bool:
        return self.collate is not None or self.augment is not None

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Apply the functions to a batch; an empty batch stays as it is."""
        if not batch.rows:
            return batch
        inputs, target = batch.inputs, batch.target
        with torch.no_grad():
            if self.augment is not None:
                inputs, target = _checked("augment", self.augment(inputs, target, generator), batch.rows)
            if self.collate is not None:
                inputs, target = _checked("collate", self.collate(inputs, target), batch.rows)
        if target is None and batch.target is not None:
            raise InvalidInput("collate or augment returned no target for a batch that has one; expected one.")
        if self.denominators is not None and target is not None:
            _check_weights(self.denominators(target), batch)
        return replace(batch, inputs=inputs, target=target)


def collated(collate: Collate | None, inputs: Inputs) -> Inputs:
    """Apply ``collate`` to inputs, in inference."""
    if collate is None:
        return inputs
    return _checked("collate", collate(inputs, None), len(inputs[0]))[0]


def _checked(name: str, returned: Any, rows: int) -> tuple[Inputs, Tensor | None]:
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    inputs, target = returned if pair else (None, None)
    if not isinstance(inputs, (tuple, list)) or not inputs or not all(isinstance(x, (Tensor, Ragged)) for x in inputs):
        raise InvalidInput(
            f"{name} returned {_described(returned)}; expected (inputs, target), and inputs as a tuple of tensors, one "
            "for each argument of forward()."
        )
    if target is not None and not isinstance(target, Tensor):
        raise InvalidInput(f"{name} returned a target of type {type(target).__name__}; expected a tensor, or None.")
    for what, tensor in [*((f"input {index}", value) for index, value in enumerate(inputs)), ("the target", target)]:
        count = "no" if isinstance(tensor, Tensor) and not tensor.dim() else rows if tensor is None else len(tensor)
        if count != rows:
            raise InvalidInput(
                f"{name} returned {count} rows in {what} for a batch of {rows} rows; expected {rows}: it may change "
                "rows, but neither add nor drop them."
            )
    return tuple(inputs), target


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {', '.join(type(item).__name__ for item in value[:5]) or 'nothing'}"
    return f"a {type(value).__name__}"


def _check_weights(terms: Tensor | None, batch: Batch) -> None:
    ones = torch.ones(batch.rows, dtype=torch.float64)
    terms = ones if terms is None else terms
    terms = terms if batch.weights is None else terms * batch.weights.to(torch.float64)
    before = ones if batch.denominators is None else batch.denominators
    if terms.shape != before.shape or not torch.allclose(terms, before, rtol=1e-9, atol=0.0):
        raise InvalidInput(
            "collate or augment changed the loss weight of labels, by class weights or ignore_index; expected the same "
            "weights. Change them in the label column, or return a loss per row from your own loss function."
        )
