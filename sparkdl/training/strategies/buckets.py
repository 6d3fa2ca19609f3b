"""Gradient buckets: which gradients travel together.

The buckets are a pure function of the parameter list, never of the order in which gradients happen to become ready,
so a resumed or resized run adds the same numbers in the same order. They go from the last parameter to the first,
about the order of the backward pass, and the first is small so that the exchange begins early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FIRST_BYTES = 1 << 20


@dataclass(frozen=True)
class Bucket:
    """A flat buffer that several gradients lie in.

    Attributes:
        index: the bucket's place in the order of exchange.
        parameters: indices into the parameter list.
        buffer: everything that travels, ``[elements + len(parameters)]``.
        gradients: one view into the buffer per parameter, of its shape.
        used: the buffer's last elements: over how many members a parameter had a gradient.
    """

    index: int
    parameters: tuple[int, ...]
    buffer: Tensor
    gradients: tuple[Tensor, ...]
    used: Tensor


def assign(sizes: Sequence[int], kinds: Sequence[object], capacity: int, first: int = FIRST_BYTES) -> list[list[int]]:
    """Which parameters share a bucket.

    Args:
        sizes: bytes of each parameter's gradient.
        kinds: what parameters must have in common to share a bucket: dtype and device.
        capacity: bytes after which a bucket is closed.
        first: the same, for the first bucket.

    Returns:
        Indices per bucket, in the order of exchange.
    """
    closed: list[list[int]] = []
    open_: dict[object, list[int]] = {}
    for index in reversed(range(len(sizes))):
        members = open_.setdefault(kinds[index], [])
        members.append(index)
        if sum(sizes[member] for member in members) >= (capacity if closed else first):
            closed.append(open_.pop(kinds[index]))
    return closed + list(open_.values())


def make_buckets(parameters: Sequence[nn.Parameter], capacity: int) -> list[Bucket]:
    """Buckets with buffers for the gradients of ``parameters``."""
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    kinds = [(parameter.dtype, parameter.device) for parameter in parameters]
    return [
        _bucket(index, members, [parameters[member] for member in members])
        for index, members in enumerate(assign(sizes, kinds, capacity, min(capacity, FIRST_BYTES)))
    ]


def _bucket(index: int, members: list[int], parameters: list[nn.Parameter]) -> Bucket:
    elements = [parameter.numel() for parameter in parameters]
    like = parameters[0]
    buffer = torch.zeros(sum(elements) + len(members), dtype=like.dtype, device=like.device)
    *flat, used = torch.split(buffer, [*elements, len(members)])
    views = tuple(piece.view(parameter.shape) for piece, parameter in zip(flat, parameters, strict=True))
    return Bucket(index, tuple(members), buffer, views, used.fill_(1))
