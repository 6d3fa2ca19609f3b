"""How one replica of the model is placed on workers.

A layout is configuration. The replica that it places holds the module, the optimizer and the arithmetic of a step. A
strategy sees plain tensors, the parameters or this worker's slices of them: it receives their gradients through a
``GradientSink``, reduces them along the workers that hold the same slices, and calls ``apply()``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from sparkdl.cluster.group.world import Group, World
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slice
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.objective.objective import Objective


class GradientSink(Protocol):
    """Receives a replica's gradients, so that a strategy can overlap communication with the backward pass."""

    def begin(self, share: float) -> None:
        """A backward pass with communication begins; ``share`` is this worker's share of the step."""

    def ready(self, index: int) -> None:
        """The gradient of parameter ``index`` is final for this step."""

    def finish(self) -> None:
        """The backward pass is over; parameters that were not ready have no gradient in it."""


@dataclass(frozen=True)
class Workers:
    """The groups of workers with which a worker exchanges tensors.

    ============================  =====================  =====================  =====================
    technique                     ``replicas``           ``data``               ``partners``
    ============================  =====================  =====================  =====================
    data parallel                 all workers            all workers            the worker alone
    fully sharded                 the worker alone       all workers            the worker alone
    hybrid sharded                its replicate group    all workers            the worker alone
    tensor or pipeline parallel   its data group         its data group         its model group
    ============================  =====================  =====================  =====================

    Attributes:
        replicas: the workers that hold the same slices, each of another replica; a strategy runs along them.
        data: the workers with other rows; buffers are averaged along them.
        partners: the workers that run on the same rows; workers with slices and other rows are no partners.
    """

    replicas: Group
    data: Group
    partners: Group = field(default_factory=Group)

    @staticmethod
    def of(world: World) -> Workers:
        """The groups of a worker that holds a whole replica."""
        return Workers(world.group(), world.group())


@dataclass
class SentBytes:
    """Bytes that this worker sent for its layout since the step began."""

    count: int = 0


class Replica(Protocol):
    """This worker's part of one placed replica; a checkpoint stores its ``state_dict``.

    Attributes:
        workers: the groups of workers with which this worker exchanges tensors.
        alike: the workers that draw the same random numbers; default: the worker alone.
        reports: whether this worker counts its rows, loss and metrics; of partners, exactly one does. The progress of
            the others has no loss.
        needs_rows: whether each worker needs a row of positive weight in each step and micro-batch.
        lockstep: whether workers exchange tensors within a pass. Each worker then runs forward and backward in every
            micro-batch, in validation and in the probe. A worker without rows runs on ``Feed.spare_row()``.
        layout_state: JSON that the layout wants to see again in ``Feed.saved``, such as the cuts of stages.
        splits_batches: whether the replica splits a batch into micro-batches itself; else the loop does.
        has_all_modules: whether the module has all modules of the model; else each worker returns its own buffers.
        slices: this worker's slices of parameters, by name, and by index in ``parameters`` for strategies that keep
            tensors by index; empty for whole tensors.
        divided: names of the weights of tables; each worker of ``workers.replicas`` holds other rows of them.
        bytes_per_step: bytes that this worker sends per step for the layout; the strategy counts its own bytes.
        max_grad_norm: the objective's, for strategies that clip a sum of gradients elsewhere than in ``apply``.
        module: the module; its parameters are whole tensors or this worker's slices.
        parameters: the trained parameters, plain tensors: whole ones, or this worker's slices.
        optimizer: the optimizer of ``parameters``.
        sink: receives the gradients of each step's last micro-batch; None without a strategy that wants them.
        output: the model's detached output in the last ``gradients``.
    """

    workers: Workers
    alike: Group = Group()
    reports: bool = True
    needs_rows: bool = False
    lockstep: bool = False
    layout_state: Mapping[str, Any] = MappingProxyType({})
    splits_batches: bool = False
    has_all_modules: bool = True
    slices: Mapping[str | int, Slice] = MappingProxyType({})
    divided: Collection[str] = ()
    bytes_per_step: int = 0
    max_grad_norm: float | None = None
    module: nn.Module
    parameters: Sequence[nn.Parameter]
    optimizer: Optimizer
    sink: GradientSink | None
    output: Any

    @property
    def tensors(self) -> Sequence[Tensor]:
        """What ``equalise`` copies from the first replica: by default the module's parameters and buffers."""
        parameters = [value for name, value in self.module.named_parameters() if name not in self.divided]
        return [value.detach() for value in (*parameters, *self.module.buffers())]

    def schedule(self, steps: int, epochs: int) -> None:
        """Open the scheduler of a run of ``epochs`` with so many ``steps`` each; the loop calls it once."""

    @abstractmethod
    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Run forward and backward on one batch; return the LOCAL mean loss, a detached scalar.

        Gradients accumulate until ``apply()``, each batch's weighted by its ``micro_fraction``. With ``last=False``
        the sink gets no call. ``output`` is the model's detached output. If the batch's weight is 0, ``output`` is
        None; the model does not run then, and in ``lockstep`` runs on the spare row.

        A strategy multiplies a gradient by the batch's ``weight_fraction`` and sums along ``workers.replicas``, if
        these are several workers. What a layout sums itself, the layout weights itself.
        """

    @abstractmethod
    def evaluate(self, batch: Batch) -> Any:
        """The output for a batch; the caller sets the module's mode, and whether torch records gradients.

        Any value, such as None, if the batch's weight is 0, and on workers that do not report.
        """

    def joined(self, batch: Batch) -> Batch:
        """The batch with the weight of all rows of the replica, for ``Sync.update``; default: the batch as it is.

        A layout with slices of several replicas overrides it, and calls the sink after it has summed its slices.
        """
        return batch

    def apply(self, step: Callable[[], None] | None = None) -> None:
        """Clip the gradients, call ``step``, by default the optimizer's, step a scheduler, and clear the gradients."""

    def open_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        """Make a second optimizer by the objective's factory, for example for a shard of the parameters."""

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
    def place(self, objective: Objective, world: World, feed: Feed) -> Replica:
        """Place this worker's part of a replica, without reading rows.

        The parts of one replica come from the same initial weights: broadcast them, since each worker draws others. The
        loop then copies the first replica into all others, by ``equalise``.
        """

    def multiple(self, size: int) -> int:
        """The divisor of the sizes of gangs with at most ``size`` workers; default: 1."""
        return 1

    def state_shards(self, workers: int) -> int:
        """Workers over which one replica's weights, gradients and optimizer state are divided; default: 1."""
        return 1

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        """Raise InvalidInput if the layout does not fit; default: it fits.

        The driver calls it before the launch if it can make the model, so ``place`` checks again.

        Args:
            objective: the objective.
            module: its module, as the factory returned it; the parameters may be on the device ``meta``.
            workers: workers of a full gang; an attempt of an elastic gang may have fewer.
        """
        return


def equalise(replica: Replica) -> Replica:
    """Copy the weights and buffers of the first replica into all replicas, and return this worker's."""
    for tensor in replica.tensors:
        replica.workers.replicas.broadcast_(tensor)
    return replica


def check_workers(layout: Layout, workers: int, param: str = "numWorkers") -> None:
    """Raise InvalidInput if a gang of so many workers, as ``param`` says, does not fit the layout."""
    if workers % layout.multiple(workers):
        raise InvalidInput(
            f"{layout} takes multiples of {layout.multiple(workers)} workers, and {param} is {workers}; expected a "
            "multiple."
        )
