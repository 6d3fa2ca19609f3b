"""How replicas synchronise.

A strategy is a frozen dataclass whose fields are its hyperparameters. ``attach`` creates its ``Sync``, which holds
the state and runs once per step. Each strategy is one file; ``bucketed`` has the cost of strategies
that send buckets, and ``blocks`` their local steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn

from sparkdl.cluster.group.peers import reaching_peers
from sparkdl.cluster.group.world import Group
from sparkdl.data.batch import Batch
from sparkdl.data.clock import Clock
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import Slices
from sparkdl.telemetry.step_timer import enter_phase
from sparkdl.training.cost.cost_model import LOOPBACK, Cost, Exchange, Link, cost, described, hosts_of, shapes_of
from sparkdl.training.cost.traffic import Hosts
from sparkdl.training.layouts import Layout, Replica
from sparkdl.training.objective.objective import Objective

OPTIMIZER_OF = "optimizer of "
"""Before a parameter's name: the key of its optimizer's state, if a shard has the optimizer."""


class Sync(Protocol):
    """A strategy attached to one replica; a checkpoint includes its state.

    Attributes:
        replica: the replica that it synchronises.
        group: the workers whose replicas it keeps equal.
        replicated: whether parameters and optimizer are bit-identical on all replicas after every update; a checkpoint
            then stores them once. If not, callbacks with the attribute ``replicated``, such as ``EMA``, do not fit, and
            the strategy's dataclass says so by ``replicated = False``.
        settles: whether ``settle`` makes the replicas equal before each checkpoint, which then stores them once.
        slices: this worker's slices of tensors in the shared state, by their keys.
    """

    replica: Replica
    group: Group
    replicated: bool
    settles: bool = False
    slices: Slices = MappingProxyType({})

    @property
    def bytes_per_step(self) -> int:
        """Bytes that this worker sends to the others per step on average, without the transport's headers."""

    def start_epoch(self) -> None:
        """Prepare the replica for the steps of an epoch, or after a resume for the rest of them; default: nothing."""
        return

    def update(self, clock: Clock, batch: Batch) -> None:
        """Reduce this step's gradients, weighted by ``batch.weight_fraction``, and apply them."""

    def end_epoch(self, share: float) -> None:
        """Set all replicas to equal weights and buffers after an epoch's last step; the loop compares the weights.

        By default, the weights are equal, and floating-point buffers become the mean of all workers, weighted by
        ``share``, the fraction of the epoch's rows that this worker and its partners have.
        """
        enter_phase("exchange")
        average_buffers(self.replica.module, self.replica.workers.data, share)

    def settle(self) -> None:
        """Wait for all workers and set all replicas to equal weights, if ``settles``; all call it after one step."""
        return

    def epoch_columns(self) -> dict[str, float]:
        """Columns of the epoch's row in the history, the same on all workers; default: none. May use collectives."""
        return {}

    def detach(self) -> None:
        """Release the replica; if the strategy promises it, all replicas are then equal."""

    def state_dict(self) -> dict[str, Any]:
        """State that persists between steps.

        Its entry ``"shared"``, if any, is a dict that is equal on all workers; a checkpoint stores it once.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``; a gang of another size restores only an entry ``"shared"``."""


class Strategy(Protocol):
    """How replicas synchronise: a frozen dataclass."""

    @abstractmethod
    def attach(self, replica: Replica, group: Group) -> Sync:
        """Begin to synchronise replicas that have the weights of rank 0; all workers call it at the same place."""

    def check(self, objective: Objective, module: nn.Module, layout: Layout, workers: int) -> None:
        """Raise InvalidInput if the strategy does not fit; default: it fits.

        The driver calls it before the launch if it can make the model, and each worker before ``attach``; the arguments
        are as of ``Layout.check``.
        """
        return

    def exchanges(self, parameters: Sequence[nn.Parameter], hosts: Hosts) -> Sequence[Exchange]:
        """The exchanges of a mean step after any warm-up, in order, from the shapes and dtypes of ``parameters`` alone.

        Args:
            parameters: trained parameters; they may be on the device ``meta``.
            hosts: the host of each worker, in rank order.

        Raises:
            InvalidInput: the strategy does not say; this is the default.
        """
        raise InvalidInput(f"{self} has no cost model; expected a strategy with the method exchanges.")

    def explain(
        self,
        model: nn.Module | Callable[[], nn.Module],
        workers: int | Sequence[Hashable],
        bandwidth: float,
        latency: float,
        *,
        compute: float = 0.0,
        overhead: float = 0.0,
        local: Link = LOOPBACK,
    ) -> Cost:
        """Predict bytes, messages, seconds and efficiency of a step; nothing is run.

        Args:
            model: a module or its factory; only the shapes and dtypes of its parameters count.
            workers: their number, each on a host of its own; or the host of each worker, in rank order.
            bandwidth: Mbit/s of a host's link in each direction.
            latency: seconds that a small message takes between two hosts.
            compute: seconds of a step without communication; default 0: the cost is communication alone.
            overhead: seconds that do not depend on the link, from ``Cost.overhead_of``.
            local: the link between workers of one host.

        Raises:
            InvalidInput: an argument is out of its range, or a parameter has no shape yet.
        """
        hosts, link = hosts_of(workers), Link(bandwidth, latency)
        exchanges = self.exchanges(shapes_of(model), hosts)
        return cost(described(self), exchanges, len(hosts), link, local=local, compute=compute, overhead=overhead)


@contextmanager
def exchange_phase() -> Iterator[None]:
    """The phase of a step in which workers wait for each other; raises PeerLost if a worker was lost."""
    enter_phase("exchange")
    with reaching_peers():
        yield
    enter_phase("update")


def average_buffers(module: nn.Module, group: Group, share: float) -> None:
    """Average floating-point buffers over the workers; batch normalisation updates them locally.

    ``share`` is the weight of this worker's buffers, such as its fraction of the rows. If the share is 0, the worker's
    buffers do not count.
    """
    values = [torch.view_as_real(buffer) if buffer.is_complex() else buffer for buffer in module.buffers()]
    values = [value for value in values if value.is_floating_point()]
    if group.size == 1 or not values:
        return
    # In double precision, so that a buffer that is equal on all workers stays unchanged.
    total = torch.cat([*(value.double().flatten() for value in values), values[0].new_ones(1, dtype=torch.float64)])
    total = total * share if share else torch.zeros_like(total)
    group.sum_(total)
    total = total[:-1] / total[-1]  # workers of one replica have the share of all its rows, so that shares exceed 1
    for value, mean in zip(values, torch.split(total, [value.numel() for value in values]), strict=True):
        value.copy_(mean.view_as(value))
