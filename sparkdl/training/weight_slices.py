"""The weights of a run in slices: each worker keeps and returns the values that are dealt to it.

A worker's slice of a parameter is that of its layout. A whole parameter is dealt to one worker, and the slices of the
others are empty. Rank 0 has the buffers and the modules' extra state as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from sparkdl.cluster.group.world import Group
from sparkdl.io.weights import Slice, Slices, entries, owners, pack_part
from sparkdl.training.layouts import Replica

_KEY = "weights of "  # before a parameter's name, whose slice of the layout may be another


def weight_slices(replica: Replica, group: Group) -> Slices:
    """This worker's slice of each parameter, by the keys of ``weights_of``; the same after each step."""
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


def weights_of(replica: Replica, slices: Slices, rank: int, *, copy: bool) -> dict[str, Any]:
    """On the CPU: ``"slices"`` of parameters, and if ``returns_others``, ``"others"`` and ``"aliases"``.

    Without ``copy``, tensors on the CPU are live.
    """
    parameters, others, aliases = _tensors(replica)

    def moved(value: Tensor) -> Tensor:
        return value.detach().to("cpu", copy=copy, memory_format=torch.contiguous_format)

    values = {key: moved(parameters[_parameter(key)]) for key, part in slices.items() if holds(part)}
    if not returns_others(replica, rank):
        return {"slices": values, "others": {}, "aliases": {}}
    return {"slices": values, "others": {name: moved(value) for name, value in others.items()}, "aliases": aliases}


def returns_others(replica: Replica, rank: int) -> bool:
    """Whether a worker returns buffers and extra state: rank 0, or of a replica with parts of the module, all."""
    return rank == 0 or not (replica.has_all_modules or replica.workers.replicas.rank)


def whole_bytes(replica: Replica, slices: Slices) -> int:
    """Bytes of the whole model's weights."""
    parameters, others, _ = _tensors(replica)
    element = max(value.element_size() for value in parameters.values())
    sizes = [math.prod(part.shape) * element for part in slices.values()]
    return sum(sizes) + sum(value.nbytes for value in others.values())


def pack_weights(
    weights: dict[str, Any],
    slices: Slices,
    tables: Collection[str] = (),
    write_rows: Callable[[str, Tensor], str] | None = None,
) -> list[memoryview]:
    """The bytes of ``weights_of``, as ``pack_part``.

    If there is a ``write_rows``, it gets the name and the rows of each table, and the bytes have no rows. ``tables``
    are the names of the tables' weights.
    """
    parameters = {_parameter(key): (slices[key], value) for key, value in weights["slices"].items()}
    if write_rows is None:
        return pack_part(parameters, weights["others"], weights["aliases"], {})
    written = {name: write_rows(_module(name), value) for name, (_, value) in parameters.items() if name in tables}
    dense = {name: value for name, value in parameters.items() if name not in tables}
    aliases = {name: first for name, first in weights["aliases"].items() if first not in tables}
    return pack_part(dense, weights["others"], aliases, {_module(name): text for name, text in written.items()})


def _tensors(replica: Replica) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Parameters, other tensors to save, and aliases, by name; a tied parameter has the first of its names."""
    tensors, aliases = entries(replica.module)
    names = dict(replica.module.named_parameters(remove_duplicate=False))
    parameters = {name: value for name, value in tensors.items() if name in names and name not in aliases}
    return parameters, {name: value for name, value in tensors.items() if name not in parameters}, aliases


def _parameter(key: str | int) -> str:
    return str(key).removeprefix(_KEY)


def _module(weight: str) -> str:
    return weight.rpartition(".")[0]
