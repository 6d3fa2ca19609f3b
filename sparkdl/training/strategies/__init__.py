"""How replicas synchronise.

A strategy is a frozen dataclass whose fields are its hyperparameters. ``attach`` creates its ``Sync``, which holds
the state and runs once per step. Each strategy is one self-contained file.
"""

from __future__ import annotations

from typing import Any, Protocol

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.telemetry.clock import Clock
from sparkdl.training.layouts import Replica


class Sync(Protocol):
    """A strategy attached to one replica; a checkpoint includes its state.

    Attributes:
        replicated: whether parameters and optimizer are bit-identical on all replicas after every update; a checkpoint
            then stores them once.
    """

    replicated: bool

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends to the others per step on average, without the transport's headers."""

    def update(self, clock: Clock, batch: Batch) -> None:
        """Reduce this step's gradients, weighted by ``batch.weight_fraction``, and apply them."""

    def detach(self) -> None:
        """Release the replica; if the strategy promises it, all replicas are then equal."""

    def state_dict(self) -> dict[str, Any]:
        """State that persists between steps."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""


class Strategy(Protocol):
    """How replicas synchronise: a frozen dataclass."""

    def attach(self, replica: Replica, group: Group) -> Sync:
        """Set every replica to the weights of rank 0, and begin to synchronise them."""


def equalise(replica: Replica, group: Group) -> None:
    """Overwrite weights and buffers with those of rank 0."""
    for tensor in (*replica.module.parameters(), *replica.module.buffers()):
        group.broadcast_(tensor.detach())
