"""The exchanges of a sharded model's units, which torch's ``fully_shard`` calls.

They go through ``Group``: by direct messages under gloo, with the gang's timeout, ``PeerLost`` for a lost worker, and
the step's phase ``exchange``. Sums are never averaged, since a worker weights its loss before the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from sparkdl.cluster.group.world import Group
from sparkdl.telemetry.step_timer import inner_phase
from sparkdl.training.layouts import SentBytes


class UnitMemory:
    """Memory of one unit's exchange on a CPU, which the next unit of the same size takes.

    The system fills new memory with zeros, page by page: a third of a step's seconds, if each exchange took new memory.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def take(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of arbitrary values: one of an earlier exchange that nothing uses any more, or a new one."""
        shape = torch.Size(map(int, size))
        if device.type != "cpu":  # torch keeps the memory of GPUs itself
            return torch.empty(shape, dtype=dtype, device=device)
        unused = [one for one in self._tensors if _users(one) == _NOBODY]
        tensor = next((one for one in unused if (one.shape, one.dtype) == (shape, dtype)), None)
        if tensor is None:
            tensor = torch.empty(shape, dtype=dtype)
            self._tensors = [tensor, *(one for one in self._tensors if _users(one) != _NOBODY)]
        return tensor.view(shape)


class UnitGather(AllGather):
    """Gathers the slices of a unit."""

    def __init__(self, group: Group, sent: SentBytes, memory: UnitMemory) -> None:
        self._group, self._sent, self._memory = group, sent, memory

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a gathered unit."""
        return self._memory.take(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Copy all workers' slices into ``output_tensor``; torch's group has the workers of this one."""
        with inner_phase("exchange"):
            self._group.all_gather_into(output_tensor, input_tensor)
        self._sent.count += (self._group.size - 1) * input_tensor.nbytes


class UnitReduceScatter(ReduceScatter):
    """Sums the gradients of a unit into slices."""

    def __init__(self, group: Group, sent: SentBytes, memory: UnitMemory) -> None:
        self._group, self._sent, self._memory = group, sent, memory
        self._sums = True

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a unit's gradients, and then for this worker's slice of their sum, which the worker keeps."""
        self._sums = not self._sums
        if self._sums:
            return torch.empty(torch.Size(map(int, size)), dtype=dtype, device=device)
        return self._memory.take(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sum this worker's slice of all workers' gradients into ``output_tensor``."""
        with inner_phase("exchange"):
            self._group.reduce_scatter_into(output_tensor, input_tensor)
        self._sent.count += (self._group.size - 1) * output_tensor.nbytes


def _users(tensor: Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


_NOBODY = _users(torch.empty(1))
