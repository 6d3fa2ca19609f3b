"""Fully sharded data parallelism: weights, gradients and optimizer state lie in slices over the workers of a replica.

Of ``n`` workers of a replica, worker ``i`` holds the slice ``w_i`` of each parameter ``w = [w_1, ..., w_n]``. For each
unit of the model, a pass

    gathers w = [w_1, ..., w_n],    runs the unit,    frees w,

forward, and once more in the backward pass, which then sums the gradients into slices:

    g_i = sum_j p_j [grad L_j(w)]_i,        sum_j p_j = 1.

``L_j`` is worker ``j``'s local mean loss, and ``p_j`` its share of the replica's rows. Gradients are summed, never
divided, so that the mean over uneven shards is exact. The optimizer steps on the slices. A worker holds ``1/n`` of the
model's state, the largest unit, and the root unit. S. Rajbhandari et al., ZeRO: memory optimizations toward training
trillion parameter models, 2020 (stage 3); Y. Zhao et al., PyTorch FSDP, 2023, arXiv:2304.11277. torch's ``fully_shard``
gathers and frees the units.

Every worker calls the units in the same order. A unit that only some workers call cannot work: they would wait for each
other until the gang's timeout.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from sparkdl.cluster.group.mesh import grid, open_axes
from sparkdl.cluster.group.world import World
from sparkdl.data.batch import Batch
from sparkdl.errors import InvalidInput
from sparkdl.io.fields import CheckedFields, Count
from sparkdl.io.weights import Slice, Slices
from sparkdl.training.layouts import Layout, Workers
from sparkdl.training.layouts.arithmetic import slow_attention
from sparkdl.training.layouts.feed import Feed
from sparkdl.training.layouts.initial_weights import InitialWeights, check_init, check_init_field
from sparkdl.training.layouts.passes import ModuleReplica
from sparkdl.training.layouts.shards.sharded_module import ShardedModule, release_meshes, shard_of
from sparkdl.training.layouts.shards.units import units_of
from sparkdl.training.layouts.slice_checks import check_slices, check_tables
from sparkdl.training.layouts.table import check_new_rows, dropped_weights
from sparkdl.training.layouts.table_rows import TableRows
from sparkdl.training.objective.objective import Objective


@dataclass(frozen=True)
class Sharded(CheckedFields, Layout):
    """Each worker holds a slice of every parameter, of its gradient and of its optimizer state.

    The optimizer must treat each element of a tensor alone, as SGD and AdamW do. Callbacks see slices. The strategy
    runs between replicas, for example ``LocalSGD`` between hosts, over a replica on the workers of each host.

    Attributes:
        units: classes of modules, or names with ``*``, whose parameters are gathered together. By default, the children
            of each ``nn.ModuleList`` and ``nn.Sequential``, and other modules of more than a million parameters.
            Modules that share a parameter form one unit. All workers must call each unit in each pass.
        replicas: copies of the model; each lies on ``numWorkers / replicas`` workers with consecutive ranks.
        init: where the initial weights come from. By default, rank 0 calls the model's factory and sends the weights,
            so that it needs memory for them once. With ``"modules"``, each module is initialised alone by its
            ``reset_parameters``, and with a function by calling the function for each module.
        keep: whether units stay gathered between forward and backward pass: faster, with more memory.
        offload: whether slices, gradients and optimizer state lie on the host; GPUs alone.
    """

    units: Sequence[Any] | None = None
    replicas: Count = 1
    init: Any = None
    keep: bool = False
    offload: bool = False

    def _check(self) -> None:
        kinds = () if self.units is None else self.units
        if isinstance(kinds, str) or not all(_is_unit(one) for one in kinds):
            raise InvalidInput(f"Sharded.units is {kinds!r}; expected a list of module classes, or of names with '*'.")
        if self.offload and self.replicas > 1:
            raise InvalidInput("Sharded has offload=True and replicas above 1; expected one of the two.")
        check_init_field("Sharded", self.init)

    def multiple(self, size: int) -> int:
        """The number of replicas."""
        return self.replicas

    def state_shards(self, workers: int) -> int:
        """The workers of a replica."""
        return workers // self.replicas

    def check(self, objective: Objective, module: nn.Module, workers: int) -> None:
        """Raise InvalidInput if the settings, the optimizer, the parameters or the units do not fit."""
        check_tables(objective, module)
        if isinstance(objective.model, nn.Module):
            check_new_rows(module)
        with dropped_weights(module):
            check_init(module, objective, self.init)
            self.check_module(objective, module)

    def check_module(self, objective: Objective, module: nn.Module) -> None:
        """Raise InvalidInput as ``check`` does, except for ``init`` and tables, which have no weights here."""
        check_slices(self, objective, module)
        if scalars := [name for name, value in module.named_parameters() if not value.dim()]:
            raise InvalidInput(
                f"layout is Sharded, and the parameters {', '.join(scalars)} are scalars, which have no rows; expected "
                "parameters of shape [1]."
            )
        units_of(module, self.units)

    def place(self, objective: Objective, world: World, feed: Feed) -> ModuleReplica:
        """Build this worker's slices of the model."""
        self._check_device(world.device, world.size)
        open_axes(world, grid({"replica": self.replicas, "shard": world.size // self.replicas}, world.size))
        weights = InitialWeights.of(objective, world, self.init)
        self.check_module(objective, weights.module)
        return self.build(objective, weights, {}, Workers(world.group("replica"), world.group()), feed)

    def build(
        self, objective: Objective, weights: InitialWeights, inner: Slices, workers: Workers, feed: Feed
    ) -> ModuleReplica:
        """This worker's slices of the model, or of the slices of a layout within this one."""
        world = weights.world
        shards, slices, empty = world.group("shard"), dict[str | int, Slice](), dict[str, Tensor]()
        for name, value in weights.module.named_parameters(remove_duplicate=False):
            part = inner.get(name) or Slice.whole(value.shape)
            slices[name] = shard_of(part.sizes, shards.rank, shards.size).within(part)
            empty[name] = torch.empty(part.sizes, dtype=value.dtype, device="meta")
        if world.device.type == "cpu" and not self.keep:
            free_to_system()
        values = weights.deal(slices)
        if shards.size == 1:
            tables = TableRows.of(module := weights.fill(values), world, feed.seed)
            replica = ModuleReplica(objective, module, workers, feed, tables=tables)
            replica.hold({**inner, **replica.slices})
            return replica
        device = world.device if self.offload else None
        values = {name: value.cpu() for name, value in values.items()} if self.offload else values
        world.on_end(release_meshes)
        module, units = weights.fill(empty), units_of(weights.module, self.units)
        sharded = ShardedModule(module, units, values, shards, keep=self.keep, device=device)
        tables = TableRows.of(sharded.module, world, feed.seed)
        return ShardedReplica(objective, sharded, slices, workers, feed, tables=tables)

    def _check_device(self, device: torch.device, size: int) -> None:
        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise InvalidInput(f"layout is Sharded, and torch is {torch.__version__}; expected torch 2.13 or later.")
        if self.offload and device.type != "cuda":
            raise InvalidInput(f"Sharded.offload is True, and device is {device.type!r}; expected a GPU, or False.")
        if self.offload and size // self.replicas == 1:
            raise InvalidInput("Sharded.offload is True, and a replica has one worker; expected several, or False.")


class ShardedReplica(ModuleReplica):
    """This worker's slices of a replica."""

    overlaps = False

    def __init__(
        self,
        objective: Objective,
        sharded: ShardedModule,
        slices: Slices,
        workers: Workers,
        feed: Feed,
        *,
        tables: TableRows | None = None,
    ) -> None:
        super().__init__(objective, sharded.module, workers, feed, device=sharded.device, tables=tables)
        self.lockstep = True
        self._sharded, self.sent = sharded, sharded.sent
        self.slice_group = sharded.group
        self.hold({**slices, **self.slices})
        if tables is not None:
            tables.sent = sharded.sent
        self._share: float | None = None  # the replica's weight in the step

    def gradients(self, batch: Batch, *, last: bool = True) -> Tensor:
        """Run forward and backward on one batch; return the local mean loss."""
        if self._share is None:
            self._share, self.sent.count = self._replica_share(batch), 0
        with self._sharded.gathered():
            loss = super().gradients(batch, last=False)
        self._step_share = self._share  # the loss has this worker's share of the replica's rows
        if last:
            self._collect()
        return loss

    def evaluate(self, batch: Batch) -> Any:
        """The output for a batch; None if its weight is 0."""
        with self._sharded.gathered(), slow_attention():
            return super().evaluate(batch)

    def joined(self, batch: Batch) -> Batch:
        """The batch with the weight of the replica's rows, at the end of its step."""
        share, self._share = self._share or 0.0, None
        return replace(batch, weight_fraction=share, weight=share * batch.step_weight)

    def _replica_share(self, batch: Batch) -> float:
        if self.workers.replicas.size == 1:
            return 1.0
        share = torch.tensor(batch.weight_fraction, dtype=torch.float64, device=self._device)
        self._sharded.group.sum_(share)
        return share.item()

    def _fraction(self, batch: Batch) -> float:
        return super()._fraction(batch) * batch.weight_fraction / self._share if self._share else 0.0

    def _spare_pass(self) -> None:
        before = {*self._sharded.used}
        super()._spare_pass()
        self._sharded.used.intersection_update(before)

    def _collect(self) -> None:
        """Give the slices their gradients, and hand them to the strategy."""
        used = torch.tensor([float(name in self._sharded.used) for name in self._names], device=self._device)
        self._sharded.group.sum_(used)
        # As on one machine, the optimizer skips a parameter that no row used.
        self._sharded.collect({name for name, count in zip(self._names, used.tolist(), strict=True) if not count})
        self.bytes_per_step = self.sent.count
        self.deliver(self._share or 0.0)


def free_to_system() -> None:
    """Let the C library return freed blocks of at least 1 MiB to the system, from now on in this process.

    Else gathered units stay with the process when they are freed, and sharding saves no memory.
    """
    try:
        libc = ctypes.CDLL(None)
        # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX of glibc's malloc.h
        done = [libc.mallopt(option, value) for option, value in ((-3, 1 << 20), (-1, 1 << 20), (-8, 1))]
    except (AttributeError, OSError):
        done = [0]
    if not all(done):
        warnings.warn(
            "layout=Sharded() needs more memory than it could: this C library has no mallopt, so that gathered units "
            "stay with the process.",
            stacklevel=2,
        )


def _is_unit(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, type) and issubclass(value, nn.Module))
