"""Memory of a worker for a model, and what to do if it is too small.

A model has ``w`` bytes of weights, ``g`` of gradients and ``o`` of the optimizer's state, and its largest unit ``u``
bytes of weights. Beside Python, torch and activations, one of ``n`` workers of a replica needs

    Replicated      w + g + o             + (w + o) / n  while it saves a checkpoint
    Sharded         (w + g + o) / n + 4 u + (w + o) / n  while it saves a checkpoint

The four copies of a unit are its gathered weights, its gradients, and the buffers of both exchanges.
"""

from __future__ import annotations

import gc
import logging
import resource
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from sparkdl.cluster.group.world import World
from sparkdl.errors import InvalidInput
from sparkdl.training.layouts import Layout
from sparkdl.training.layouts.shards.units import units_of
from sparkdl.training.layouts.table import Table, state_sizes, tables_of
from sparkdl.training.objective.objective import Objective

_COPIES = 4  # of a unit
logger = logging.getLogger(__name__)
_SIGNS = ("std::bad_alloc", "can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory")
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of a whole model.

    Attributes:
        weights: of all parameters.
        gradients: of the trained parameters.
        optimizer: of the optimizer's state.
        unit: weights of the largest unit of ``Sharded``.
        saves: whether workers save checkpoints.
    """

    weights: int
    gradients: int
    optimizer: int
    unit: int = 0
    saves: bool = False

    @staticmethod
    def of(
        objective: Objective, module: nn.Module, units: Sequence[Any] | None = None, *, saves: bool = False
    ) -> ModelMemory:
        """The memory that a module needs.

        One step on small tensors tells how many bytes of state the optimizer keeps for each byte of a parameter.

        Args:
            objective: has the optimizer.
            module: the module; its parameters may be on the device ``meta``.
            units: the field ``units`` of ``Sharded``.
            saves: whether workers save checkpoints.
        """
        named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        gradients = sum(value.nbytes for _, value in named)
        small = [(name, nn.Parameter(torch.ones(4, 6, dtype=objective.dtype))) for name, _ in named]
        optimizer = objective.open_optimizer(small)
        for _, value in small:
            value.grad = torch.ones_like(value)
        with suppress(RuntimeError):  # SparseAdam takes no dense gradients
            optimizer.step()
        states = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
        copies = sum(one.nbytes for one in states if one.numel() > 1) / sum(value.nbytes for _, value in small)
        weights = sum(value.nbytes for value in module.parameters())
        return ModelMemory(weights, gradients, int(copies * gradients), _largest_unit(module, units), saves)

    @property
    def trained(self) -> int:
        """Bytes of weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def saved(self) -> int:
        """Bytes of the copy that is saved as a checkpoint."""
        return (self.weights + self.optimizer) * self.saves

    def replicated(self, workers: int) -> int:
        """Bytes of one of so many workers of ``Replicated``."""
        return self.trained + ceil(self.saved / workers)

    def sharded(self, workers: int) -> int:
        """Bytes of a worker of ``Sharded`` with so many workers of a replica."""
        return ceil((self.trained + self.saved) / workers) + _COPIES * self.unit

    def fewest(self, free: int) -> int | None:
        """The fewest workers of a replica, each with ``free`` bytes for the model; None if a unit is too large."""
        free -= _COPIES * self.unit
        return ceil((self.trained + self.saved) / free) if free > 0 else None


def _largest_unit(module: nn.Module, units: Sequence[Any] | None) -> int:
    left, sizes = {*module.parameters()}, []
    for unit in [*units_of(module, units), [module]]:
        members = {value for part in unit for value in part.parameters()} & left
        sizes.append(sum(value.nbytes for value in members))
        left -= members
    return max(sizes)


def free_memory(device: torch.device, workers: int = 1) -> int:
    """Bytes that a worker may still use: of the GPU, or the least of the process's, the container's and the host's.

    So many ``workers`` share the container and the host.
    """
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    texts = [file.read_text(encoding="utf-8").strip() for file in map(Path, _CGROUPS) if file.exists()]
    limits = [psutil.virtual_memory().total, *(int(text) for text in texts if text.isdigit())]
    used: Any = psutil.Process().memory_info()  # Linux alone has all of it
    free: int = min(limits) // workers - (used.rss - getattr(used, "shared", 0))
    data = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return free if data == resource.RLIM_INFINITY else min(free, data - getattr(used, "data", 0))


@contextmanager
def explaining_memory(objective: Objective, layout: Layout, world: World, *, saves: bool) -> Iterator[None]:
    """Raise InvalidInput that says what the model needs, if the block runs out of memory."""
    free = free_memory(world.device, max(1, world.hosts.count(world.host)))
    try:
        yield
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        cause: BaseException | None = error
        while cause is not None:  # frees what the training holds
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        gc.collect()
        units = getattr(layout, "units", None)
        try:
            module = objective.build(parameters=False)
            memory = ModelMemory.of(objective, module, units, saves=saves)
        except Exception:
            logger.warning("the memory that the model needs cannot be computed", exc_info=True)
            raise error from None
        if tables := tables_of(module):
            raise InvalidInput(_advice_on_tables([*tables.values()], objective.dtype, world.size, free)) from error
        raise InvalidInput(_advice(memory, layout, world.size, free)) from error


def _advice(memory: ModelMemory, layout: Layout, size: int, free: int) -> str:
    parts = {"weights": memory.weights, "gradients": memory.gradients, "the optimizer's state": memory.optimizer}
    shares = layout.state_shards(size)
    holder = "A worker" if shares > 1 or layout.multiple(size) == 1 else "The whole model"
    listed = ", ".join(f"{value / shares / 1e6:.0f} MB of {name}" for name, value in parts.items())
    text = (
        f"a worker ran out of memory. The layout is {type(layout).__name__}, and numWorkers is {size}. {holder} has "
        f"{listed}; a worker has {free / 1e6:.0f} MB beside Python and torch."
    )
    fewest = memory.fewest(free)
    fits = memory.sharded(shares) if shares > 1 else memory.replicated(size)
    if fits <= free and holder == "A worker":
        return f"{text} The rest are activations: lower batchSize, or raise microBatches or numWorkers."
    if fewest is None:
        return f"{text} The largest unit of the model has {memory.unit / 1e6:.0f} MB; set smaller units in Sharded()."
    return (
        f"{text} Set layout=Sharded() and numWorkers of at least {fewest}: then a worker needs "
        f"{memory.sharded(fewest) / 1e6:.0f} MB, and memory for activations."
    )


def _advice_on_tables(tables: Sequence[Table], dtype: torch.dtype, size: int, free: int) -> str:
    numbers = [one.embedding_dim + sum(map(prod, state_sizes(one).values())) for one in tables]
    total = sum(one.num_embeddings * count for one, count in zip(tables, numbers, strict=True)) * dtype.itemsize / 1e6
    return (
        f"a worker ran out of memory. The tables have {total:.0f} MB with their optimizers' states, {total / size:.0f} "
        f"MB for a worker with numWorkers={size}, and {total / (size + 1):.0f} MB with numWorkers={size + 1}. A worker "
        f"has {free / 1e6:.0f} MB beside Python and torch. Raise numWorkers, or lower batchSize."
    )


def _is_out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        kinds = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if kinds or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)):
            return True
        error = error.__cause__ or error.__context__
    return False
