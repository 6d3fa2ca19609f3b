"""A shard in the memory of a GPU, from which batches are gathered without a copy from the host.

A shard that does not fit stays in the host's memory, and each batch is copied.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkdl.data.batch import promote_ints
from sparkdl.data.shard import Shard
from sparkdl.errors import InvalidInput

MODES = ("auto", "always", "never")
MARGIN = 0.5
"""The share of a GPU's free memory that a shard may take in the mode ``auto``; the rest is for the model."""


@dataclass(frozen=True)
class DeviceCache:
    """A shard's columns on a device.

    Attributes:
        tensors: column name -> tensor ``[stored rows, *shape]``, with 16 and 32 bit integers as int64.
        device: their device.
    """

    tensors: dict[str, Tensor]
    device: torch.device

    @staticmethod
    def of(shard: Shard, device: torch.device, mode: str = "auto") -> DeviceCache | None:
        """Copy the columns of a shard's batches to a device; None if they stay on the host, as ragged columns do.

        Raises and warns as ``fits``.
        """
        tensors = DeviceCache.columns(shard)
        if mode == "always" and len(tensors) < len(set(shard.columns.of_batches())):
            warnings.warn("cacheOnDevice='always' is ignored: a column is ragged.", stacklevel=2)
        size = sum(column.numel() * promote_ints(column[:0]).element_size() for column in tensors.values())
        if not fits(size, device, mode) or len(tensors) < len(set(shard.columns.of_batches())):
            return None
        try:
            return DeviceCache({name: promote_ints(tensor.to(device)) for name, tensor in tensors.items()}, device)
        except torch.OutOfMemoryError:  # other processes have taken the memory
            if mode == "always":
                raise
            return None

    @staticmethod
    def columns(shard: Shard) -> dict[str, Tensor]:
        """The columns of a shard's batches on the host that are not ragged, in the order of batches."""
        columns = {name: shard.tensors[name] for name in shard.columns.of_batches()}
        return {name: column for name, column in columns.items() if isinstance(column, Tensor)}

    def taken(self, positions: Tensor) -> dict[str, Tensor]:
        """The rows at ``positions``, which are on the device."""
        return {name: tensor.index_select(0, positions) for name, tensor in self.tensors.items()}


def fits(size: int, device: torch.device, mode: str) -> bool:
    """Whether ``size`` bytes are to be held on the device.

    Args:
        size: bytes of the shard's columns on the device.
        device: of the batches; a shard for the CPU is never copied.
        mode: ``"auto"`` for at most ``MARGIN`` of the free memory, ``"always"`` or ``"never"``.

    Raises:
        InvalidInput: the mode is ``"always"``, and the shard is larger than the free memory.
    """
    if mode == "always" and device.type == "cpu":
        warnings.warn("cacheOnDevice='always' is ignored: device is 'cpu'.", stacklevel=2)
    if mode == "never" or device.type == "cpu":
        return False
    available, _ = torch.cuda.mem_get_info(device)
    if mode == "always" and size > available:
        raise InvalidInput(
            f"cacheOnDevice is 'always', the shard takes {size} bytes, and {device} has {available} bytes free; "
            "expected a smaller shard: raise numWorkers, or set cacheOnDevice='auto'."
        )
    return mode == "always" or size <= MARGIN * available
