"""What a layout sends in a step, by its type.

For each unit of ``u`` bytes, ``Sharded`` on ``n`` workers of a replica gathers ``u`` before the forward pass and again
before the backward pass, except with ``keep``, and sums the unit's gradients into slices:

    2 all-gathers of u / n bytes of each worker, and 1 reduce-scatter of u bytes.

On gloo, no computation overlaps them. The exchanges of ``TensorParallel`` and ``Pipelined`` depend on the sizes of
activations, which a module without rows does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sparkdl.errors import InvalidInput
from sparkdl.training.cost.cost_model import Exchange
from sparkdl.training.cost.traffic import Hosts, Traffic, all_gather, reduce_scatter, total
from sparkdl.training.layouts import Layout, check_workers
from sparkdl.training.layouts.replicated import Replicated
from sparkdl.training.layouts.sharded import Sharded
from sparkdl.training.layouts.shards.units import units_of


def layout_exchanges(layout: Layout, module: nn.Module, hosts: Hosts, micro_batches: int = 1) -> list[Exchange]:
    """The exchanges of a layout in a step; none for ``Replicated``.

    Args:
        layout: the layout.
        module: the model; its parameters may be on the device ``meta``.
        hosts: the host of each worker, in rank order.
        micro_batches: of a step; each of them gathers and sums.

    Raises:
        InvalidInput: the layout has no cost model, or does not fit so many workers.
    """
    if isinstance(layout, Replicated):
        return []
    if not isinstance(layout, Sharded):
        raise InvalidInput(f"{type(layout).__name__} sends activations, whose sizes the model alone does not tell.")
    check_workers(layout, len(hosts), "workers")
    workers = len(hosts) // layout.replicas
    units = {value for unit in units_of(module, layout.units) for part in unit for value in part.parameters()}
    once = sum(_padded(value, workers) for value in module.parameters())
    again = 0 if layout.keep else sum(_padded(value, workers) for value in units)  # the root unit stays gathered
    summed = sum(_padded(value, workers) for value in module.parameters() if value.requires_grad)
    gathers = [all_gather(size / workers, hosts[:workers]) for size in (once, again)]
    traffic: Traffic = total([*gathers, reduce_scatter(summed, hosts[:workers])])
    return [Exchange(traffic * micro_batches)]


def strategy_parameters(layout: Layout, parameters: Sequence[nn.Parameter], hosts: Hosts) -> list[nn.Parameter]:
    """What a worker's strategy exchanges between replicas: whole parameters, or slices of them, without values."""
    if not isinstance(layout, Sharded):
        return [*parameters]
    workers = len(hosts) // layout.replicas
    shapes = [(-(-value.shape[0] // workers), *value.shape[1:]) for value in parameters]
    sliced = zip(shapes, parameters, strict=True)
    return [nn.Parameter(torch.empty(shape, dtype=value.dtype, device="meta")) for shape, value in sliced]


def replica_hosts(layout: Layout, hosts: Hosts) -> Hosts:
    """The hosts of the workers that hold the same slices, one of each replica."""
    return hosts[:: len(hosts) // layout.replicas] if isinstance(layout, Sharded) else hosts


def _padded(value: nn.Parameter, workers: int) -> int:
    rows = value.shape[0] if value.dim() else 1
    return -(-rows // workers) * workers * (value.nbytes // max(rows, 1))
