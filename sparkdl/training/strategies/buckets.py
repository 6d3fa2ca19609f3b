"""Gradient buckets: which gradients are reduced together.

The buckets depend on the parameter list alone, not on the order in which gradients are ready. So a resumed or resized
run adds in the same order. Buckets go from the last parameter to the first, roughly the order of the backward pass.
The first bucket is small, so that communication starts early.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FIRST_BYTES = 1 << 20


@dataclass(frozen=True)
class Bucket:
    """A flat buffer of several gradients."""

    index: int  # position in the order of reduction
    parameters: tuple[int, ...]  # indices into the parameter list
    buffer: Tensor  # the tensor that is reduced, [elements + len(parameters)]
    gradients: tuple[Tensor, ...]  # one view into the buffer per parameter, of its shape
    used: Tensor  # last elements of the buffer: the number of workers with a gradient, per parameter


def assign(sizes: Sequence[int], kinds: Sequence[object], capacity: int, first: int = FIRST_BYTES) -> list[list[int]]:
    """Assign parameters to buckets: indices per bucket, in the order of reduction.

    ``sizes`` are bytes. A bucket holds parameters of one kind, such as dtype and device. It is closed at ``capacity``
    bytes, the first bucket at ``first``.
    """
    closed: list[list[int]] = []
    open_: dict[object, list[int]] = {}
    for index in reversed(range(len(sizes))):
        members = open_.setdefault(kinds[index], [])
        members.append(index)
        if sum(sizes[member] for member in members) >= (capacity if closed else first):
            closed.append(open_.pop(kinds[index]))
    return closed + list(open_.values())


def make_buckets(parameters: Sequence[nn.Parameter], capacity: int, *, leave_out: Collection[int] = ()) -> list[Bucket]:
    """Buckets with buffers for the gradients of ``parameters``; parameters whose index is in ``leave_out`` get none."""
    indices = [index for index in range(len(parameters)) if index not in leave_out]
    sizes = [parameters[index].numel() * parameters[index].element_size() for index in indices]
    kinds = [(parameters[index].dtype, parameters[index].device) for index in indices]
    positions = assign(sizes, kinds, capacity, min(capacity, FIRST_BYTES))
    members = [[indices[position] for position in bucket] for bucket in positions]
    return [_bucket(number, bucket, [parameters[index] for index in bucket]) for number, bucket in enumerate(members)]


def _bucket(index: int, members: list[int], parameters: list[nn.Parameter]) -> Bucket:
    elements, like = sum(parameter.numel() for parameter in parameters), parameters[0]
    buffer = torch.zeros(elements + len(members), dtype=like.dtype, device=like.device)
    *gradients, used = views(buffer, [*(parameter.shape for parameter in parameters), (len(members),)])
    return Bucket(index, tuple(members), buffer, tuple(gradients), used.fill_(1))


def views(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Consecutive pieces of ``flat``, ``[n]``, as views of these shapes."""
    pieces = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
