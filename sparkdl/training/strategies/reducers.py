"""How a bucket of gradients is summed over the members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkdl.cluster.group.world import Group
from sparkdl.training.strategies.buckets import Bucket


class Exchange(Protocol):
    """A bucket on its way."""

    def wait(self) -> Any:
        """Return when the bucket's buffer holds the sum."""


class Reduction(Protocol):
    """A reducer at work; what it keeps from step to step is part of a checkpoint."""

    def start(self, bucket: Bucket) -> Exchange:
        """Begin to sum a bucket's buffer in place; every member starts the same buckets in the same order."""

    def state_dict(self) -> dict[str, Any]:
        """Residuals and the like."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the reduction to a state that ``state_dict`` returned."""


class Reducer(Protocol):
    """How buckets are summed: a frozen dataclass."""

    def open(self, buckets: Sequence[Bucket], group: Group) -> Reduction:
        """Start to work on these buckets."""


@dataclass(frozen=True)
class Exact:
    """Sum every bit: the backend's own all-reduce (a ring in gloo, a ring or a tree in NCCL)."""

    def open(self, buckets: Sequence[Bucket], group: Group) -> ExactReduction:
        """See ``Reducer.open``."""
        return ExactReduction(group)


class ExactReduction:
    """The backend's all-reduce; it keeps nothing."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def start(self, bucket: Bucket) -> Exchange:
        """See ``Reduction.start``."""
        exchange: Exchange = self._group.sum_(bucket.buffer, wait=False)
        return exchange

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
