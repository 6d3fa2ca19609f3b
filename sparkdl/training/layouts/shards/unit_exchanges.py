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
from sparkdl.training.layouts.sent_bytes import SentBytes


class UnitGather(AllGather):
    """Gathers the slices of a unit."""

    def __init__(self, group: Group, sent: SentBytes) -> None:
        self._group, self._sent = group, sent

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a gathered unit."""
        return torch.empty([int(one) for one in size], dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Copy all workers' slices into ``output_tensor``; torch's group has the workers of this one."""
        with inner_phase("exchange"):
            self._group.all_gather_into(output_tensor, input_tensor)
        self._sent.count += (self._group.size - 1) * input_tensor.nbytes


class UnitReduceScatter(ReduceScatter):
    """Sums the gradients of a unit into slices."""

    def __init__(self, group: Group, sent: SentBytes) -> None:
        self._group, self._sent = group, sent

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a unit's gradients."""
        return torch.empty([int(one) for one in size], dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sum this worker's slice of all workers' gradients into ``output_tensor``."""
        with inner_phase("exchange"):
            self._group.reduce_scatter_into(output_tensor, input_tensor)
        self._sent.count += (self._group.size - 1) * output_tensor.nbytes
