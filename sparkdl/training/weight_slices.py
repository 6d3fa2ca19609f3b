"""The weights of a run in slices: each worker keeps and returns the values that are dealt to it.

A worker's slice of a parameter is that of its layout. A whole parameter is dealt to one worker, and the slices of the
others are empty. Rank 0 has the buffers and the modules' extra state as well.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.io.weights import Slice, Slices, entries, owners, pack_part
from sparkdl.training.layouts import Replica

_KEY = "weights of "  # before a parameter's name, whose slice of the layout may be another


def weight_slices(replica: Replica, group: Group) -> Slices:
    """This worker's slice of each parameter, by the keys of ``copy_weights``; the same after each step."""
    parameters = _tensors(replica)[0]
    owner = owners({name: value.nbytes for name, value in parameters.items() if name not in replica.slices}, group.size)
    slices: dict[str | int, Slice] = {}
    for name, value in parameters.items():
        slices[_KEY + name] = replica.slices.get(name) or Slice.whole(value.shape)
        if value.dim() and owner.get(name, group.rank) != group.rank:  # a scalar has no empty slice: all have it
            slices[_KEY + name] = Slice(tuple(value.shape), (range(0), *map(range, value.shape[1:])))
    if not replica.has_all_modules:  # so that a resume reads no weights of other stages
        names = [name for name in replica.slices if isinstance(name, str) and name not in parameters]
        slices |= {_KEY + name: replica.slices[name] for name in names if not math.prod(replica.slices[name].sizes)}
    return slices


def holds(part: Slice) -> bool:
    """Whether a worker keeps and returns a slice: an empty one only of a tensor without values."""
    return bool(math.prod(part.sizes)) or not math.prod(part.shape)


def copy_weights(replica: Replica, slices: Slices, rank: int) -> dict[str, Any]:
    """Copies on the CPU: ``"slices"`` of parameters, and if ``returns_others``, ``"others"`` and ``"aliases"``."""
    parameters, others, aliases = _tensors(replica)
    copies = {}
    for key, part in slices.items():
        if holds(part):
            copies[key] = _copied(parameters[str(key).removeprefix(_KEY)])
    if not returns_others(replica, rank):
        return {"slices": copies, "others": {}, "aliases": {}}
    return {"slices": copies, "others": {name: _copied(value) for name, value in others.items()}, "aliases": aliases}


def returns_others(replica: Replica, rank: int) -> bool:
    """Whether a worker returns buffers and extra state: rank 0, or of a replica with parts of the module, all."""
    return rank == 0 or not (replica.has_all_modules or replica.workers.replicas.rank)


def whole_bytes(replica: Replica, slices: Slices) -> int:
    """Bytes of the whole model's weights."""
    parameters, others, _ = _tensors(replica)
    element = max(value.element_size() for value in parameters.values())
    sizes = [math.prod(part.shape) * element for part in slices.values()]
    return sum(sizes) + sum(value.nbytes for value in others.values())


def pack_weights(weights: dict[str, Any], slices: Slices) -> list[memoryview]:
    """The bytes of ``copy_weights``, as ``pack_part``."""
    parameters = {str(key).removeprefix(_KEY): (slices[key], value) for key, value in weights["slices"].items()}
    return pack_part(parameters, weights["others"], weights["aliases"])


def _tensors(replica: Replica) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Parameters, other tensors to save, and aliases, by name; a tied parameter has the first of its names."""
    tensors, aliases = entries(replica.module)
    names = dict(replica.module.named_parameters(remove_duplicate=False))
    parameters = {name: value for name, value in tensors.items() if name in names and name not in aliases}
    return parameters, {name: value for name, value in tensors.items() if name not in parameters}, aliases


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
