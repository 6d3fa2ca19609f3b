"""How a bucket of gradients is summed over the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkdl.cluster.group.world import Group
from sparkdl.training.strategies.buckets import Bucket


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
