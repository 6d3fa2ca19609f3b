"""How one replica of the model lies on the members.

A layout is configuration; the replica it places holds the module, the optimizer and the arithmetic of a step, and
knows nothing of other replicas. How replicas agree is a strategy's matter: it listens to a replica's gradients
through a ``GradientSink`` and calls ``apply()`` when they are what they should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.training.objective import Objective


class GradientSink(Protocol):
    """What a strategy gives a replica in order to overlap its exchange with the backward pass."""

    def begin(self, share: float) -> None:
        """A backward pass that is to be exchanged begins; ``share`` is this member's share of the step."""

    def ready(self, index: int) -> None:
        """The gradient of parameter ``index`` is final for this step."""

    def finish(self) -> None:
        """The backward pass is over; a parameter that was not ready got no gradient in it."""


class Replica(Protocol):
    """One replica, placed. Its state (``state_dict``) is what a checkpoint holds of it."""

    module: nn.Module
    parameters: Sequence[nn.Parameter]
    sink: GradientSink | None
    output: Any

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Forward and backward of one batch; returns the LOCAL mean loss, a detached scalar.

        Gradients add up over calls until ``apply()``, each batch's weighted by its ``fraction``. With
        ``last=False`` the sink hears nothing. ``output`` is the model's output, detached; None for a batch that
        weighs nothing, which the model does not see.
        """

    def apply(self) -> None:
        """Clip, step the optimizer and the scheduler, and drop the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """Module, optimizer and scheduler, between two steps; tensors are the live ones.

        Returns:
            Two entries: ``"alike"`` has what is the same on all replicas that take the same steps, parameters and
            optimizer, as dicts of tensors; ``"own"`` the rest, such as buffers.

        Raises:
            InvalidInput: there are gradients that ``apply()`` has not used.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the replica to a state that ``state_dict`` returned.

        Raises:
            InvalidInput: the state is of another architecture, optimizer or scheduler.
        """


class Layout(Protocol):
    """How one replica lies on members: a frozen dataclass."""

    def place(self, objective: Objective, world: World) -> Replica:
        """This member's piece of its replica."""
