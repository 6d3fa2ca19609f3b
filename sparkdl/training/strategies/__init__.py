"""How replicas agree.

A strategy is configuration: a frozen dataclass whose fields are its hyperparameters. ``attach`` makes its ``Sync``,
which holds the state and is called once a step. Each strategy is one file that reads alone.
"""

from __future__ import annotations

from typing import Any, Protocol

from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.telemetry.clock import Clock
from sparkdl.training.layouts import Replica


class Sync(Protocol):
    """A strategy at work on one replica; its state is part of a checkpoint.

    Attributes:
        alike: whether all replicas are equal to the bit after every update, but for what is a replica's own: a
            checkpoint then has one copy of them.
    """

    alike: bool

    @property
    def bytes_per_step(self) -> int:
        """Bytes that one member gives to the exchange in a step."""

    def update(self, clock: Clock, batch: Batch) -> None:
        """Exchange what the strategy exchanges at this step, weighted by ``batch.share``, and apply it."""

    def detach(self) -> None:
        """Let go of the replica, all replicas equal where the strategy promises that."""

    def state_dict(self) -> dict[str, Any]:
        """What the sync carries from step to step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the sync to a state that ``state_dict`` returned."""


class Strategy(Protocol):
    """How replicas agree: a frozen dataclass."""

    def attach(self, replica: Replica, group: Group) -> Sync:
        """Make every replica the same as that of rank 0, and start to keep them in agreement."""


def equalise(replica: Replica, group: Group) -> None:
    """Overwrite weights and buffers with those of rank 0."""
    for tensor in (*replica.module.parameters(), *replica.module.buffers()):
        group.broadcast_(tensor.detach())
