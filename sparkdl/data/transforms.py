"""What the user's own functions make of batches, in the feed's thread.

Both see an input column as it lies in the batch: a tensor ``[rows, ...]``, or ``Ragged`` rows of several lengths. They
may change values, shapes and the number of inputs, but not the rows: what a row weighs in the loss, and which member
has how many of them, was agreed on before.
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
"""``collate(inputs, target)``, of every batch; the target is None in inference, and where there is no label."""
Augment = Callable[[Inputs, "Tensor | None", torch.Generator], tuple[Sequence[Input], "Tensor | None"]]
"""``augment(inputs, target, generator)``, of training batches, before ``collate``; random numbers come from there."""


@dataclass(frozen=True)
class Transforms:
    """What batches go through before they reach the model.

    Attributes:
        collate: for every batch; None for none.
        augment: for training batches, before ``collate``; None for none.
        masses: what the loss makes each row of a target weigh, to refuse a target that changes it; None if nothing.
    """

    collate: Collate | None = None
    augment: Augment | None = None
    masses: Callable[[Tensor], Tensor | None] | None = None

    def __bool__(self) -> bool:
        return self.collate is not None or self.augment is not None

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch that the functions make of one; a batch without rows, which no model sees, stays what it is.

        Raises:
            InvalidInput: a function changed the number of rows or what they weigh, or returned something else.
        """
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
        if self.masses is not None and target is not None:
            _check_masses(self.masses(target), batch)
        return replace(batch, inputs=inputs, target=target)


def collated(collate: Collate | None, inputs: Inputs) -> Inputs:
    """The inputs that ``collate`` makes of some, in inference."""
    if collate is None:
        return inputs
    return _checked("collate", collate(inputs, None), len(inputs[0]))[0]


def _checked(name: str, returned: Any, rows: int) -> tuple[Inputs, Tensor | None]:
    """What a function returned, if it is of as many rows as it was given."""
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    inputs, target = returned if pair else (None, None)
    if not isinstance(inputs, (tuple, list)) or not inputs or not all(isinstance(x, (Tensor, Ragged)) for x in inputs):
        raise InvalidInput(
            f"{name} returned {_described(returned)}; expected (inputs, target), and inputs as a tuple of tensors, one "
            "for each argument of forward()."
        )
    if target is not None and not isinstance(target, Tensor):
        raise InvalidInput(f"{name} returned a target of type {type(target).__name__}; expected a tensor, or None.")
    for what, tensor in [*((f"input {index}", each) for index, each in enumerate(inputs)), ("the target", target)]:
        if tensor is not None and _rows(tensor) != rows:
            raise InvalidInput(
                f"{name} returned {_rows(tensor)} rows in {what} for a batch of {rows} rows; expected {rows}: rows may "
                "be changed, but neither added nor left out."
            )
    return tuple(inputs), target


def _rows(tensor: Input) -> int | str:
    return "no" if isinstance(tensor, Tensor) and not tensor.dim() else len(tensor)


def _described(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {', '.join(type(each).__name__ for each in value[:5]) or 'nothing'}"
    return f"a {type(value).__name__}"


def _check_masses(each: Tensor | None, batch: Batch) -> None:
    """Refuse labels that weigh something else than those that the members agreed on."""
    found = torch.ones(batch.rows, dtype=torch.float64) if each is None else each
    found = found if batch.weights is None else found * batch.weights.to(torch.float64)
    before = torch.ones(batch.rows, dtype=torch.float64) if batch.masses is None else batch.masses
    if found.shape != before.shape or not torch.allclose(found, before, rtol=1e-9, atol=0.0):
        raise InvalidInput(
            "collate or augment changed labels to some of another weight in the loss, by its class weights or its "
            "ignore_index; expected labels that weigh the same. Change them in the label column, or write the loss as "
            "a function that returns a loss for each row."
        )
