"""How a bucket of gradients is summed over the workers.

A reducer is a frozen dataclass whose fields are its hyperparameters. ``open`` creates its ``Reduction``, which holds
the state and sums buckets. Each reducer is one self-contained file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sparkdl.cluster.group.world import Group
from sparkdl.training.strategies.buckets import Bucket


class PendingReduce(Protocol):
    """A pending reduction of a bucket."""

    def wait(self) -> Any:
        """Wait until the bucket's buffer holds the sum; every worker waits in the order of the starts.

        A reducer may start further collectives here, also those of other buckets.
        """


class Reduction(Protocol):
    """An open reducer; a checkpoint includes its state."""

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends to the others to sum all buckets once, without the transport's headers.

        If they change over time, as after uncompressed first steps: of the step that started last.
        """

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
