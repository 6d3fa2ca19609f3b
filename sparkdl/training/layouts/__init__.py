"""How one replica of the model is placed on workers.

A layout is configuration. The replica that it places holds the module, the optimizer and the arithmetic of a step. It
knows no other replicas: a strategy receives its gradients through a ``GradientSink``, reduces them, and calls
``apply()``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Batch
from sparkdl.io.weights import Slice
from sparkdl.training.objective.objective import Objective


class GradientSink(Protocol):
    """Receives a replica's gradients, so that a strategy can overlap communication with the backward pass."""

    def begin(self, share: float) -> None:
        """A backward pass with communication begins; ``share`` is this worker's share of the step."""

    def ready(self, index: int) -> None:
        """The gradient of parameter ``index`` is final for this step."""

    def finish(self) -> None:
        """The backward pass is over; parameters that were not ready have no gradient in it."""


class Replica(Protocol):
    """One placed replica; a checkpoint stores its ``state_dict``.

    ``needs_rows`` says whether each worker needs a row of positive weight in each step and micro-batch. ``slices`` are
    this worker's slices of parameters, by name and by index in ``parameters``; empty if it has whole tensors.
    """

    needs_rows: bool = False
    slices: Mapping[str | int, Slice] = MappingProxyType({})

    module: nn.Module
    parameters: Sequence[nn.Parameter]
    optimizer: Optimizer
    sink: GradientSink | None
    output: Any

    def schedule(self, steps: int, epochs: int) -> None:
        """Open the scheduler of a run of ``epochs`` with so many ``steps`` each; the loop calls it once."""

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Run forward and backward on one batch; return the LOCAL mean loss, a detached scalar.

        Gradients accumulate until ``apply()``, each batch's weighted by its ``micro_fraction``. With ``last=False``
        the sink gets no call. ``output`` is the model's detached output. If the batch's weight is 0, the model does
        not run and ``output`` is None.
        """

    def apply(self) -> None:
        """Clip the gradients, step the optimizer and a scheduler of steps, and clear the gradients."""

    def end_epoch(self, value: float) -> None:
        """Step a scheduler of epochs; ``value`` is the epoch's monitored value, the same on all replicas."""

    def state_dict(self) -> dict[str, Any]:
        """Module, optimizer and scheduler between two steps; tensors are live, not copies.

        Returns:
            ``"shared"``, dicts of tensors that are equal on replicas with the same steps, such as parameters, or this
            worker's slices of them; and ``"local"``, the rest, such as buffers.

        Raises:
            InvalidInput: there are gradients that ``apply()`` has not used.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; raises InvalidInput if it is of another architecture, optimizer or scheduler."""


class Layout(Protocol):
    """How a replica is placed on workers: a frozen dataclass."""

    @abstractmethod
    def place(self, objective: Objective, world: World) -> Replica:
        """This worker's replica, with any weights: the loop then calls ``equalise``."""


def equalise(replica: Replica, group: Group) -> Replica:
    """Copy the weights and buffers of rank 0 into the replica of every worker, and return this worker's replica."""
    for tensor in (*replica.module.parameters(), *replica.module.buffers()):
        group.broadcast_(tensor.detach())
    return replica
