"""Gradient buckets, and how a bucket is summed over the workers.

The buckets depend on the parameter list alone, not on the order in which gradients are ready. So a resumed or resized
run adds in the same order. Buckets go from the last parameter to the first, roughly the order of the backward pass.
The first bucket is small, so that communication starts early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sparkdl.cluster.group.world import Group

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

    ``sizes`` are bytes. A bucket holds parameters of one kind, such as dtype and device, and is closed at ``capacity``
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


class PendingReduce(Protocol):
    """A pending reduction of a bucket."""

    def wait(self) -> Any:
        """Wait until the bucket's buffer holds the sum."""


class Reduction(Protocol):
    """An open reducer; a checkpoint includes its state."""

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start to sum a bucket's buffer in place; every worker starts the same buckets in the same order."""

    def state_dict(self) -> dict[str, Any]:
        """State that persists between steps, such as residuals."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""


class Reducer(Protocol):
    """How buckets are summed: a frozen dataclass."""

    def open(self, buckets: Sequence[Bucket], group: Group) -> Reduction:
        """Open the reducer for these buckets."""


@dataclass(frozen=True)
class Exact:
    """Uncompressed sum by the backend's all-reduce (a ring in gloo, a ring or a tree in NCCL)."""

    def open(self, buckets: Sequence[Bucket], group: Group) -> ExactReduction:
        """Open the reducer; ``buckets`` is not used."""
        return ExactReduction(group)


class ExactReduction:
    """The backend's all-reduce; it has no state."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def start(self, bucket: Bucket) -> PendingReduce:
        """Start the backend's all-reduce of the bucket's buffer."""
        exchange: PendingReduce = self._group.sum_(bucket.buffer, wait=False)
        return exchange

    def state_dict(self) -> dict[str, Any]:
        """An empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the empty state."""
