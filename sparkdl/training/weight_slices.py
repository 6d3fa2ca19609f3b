"""The weights of a run in slices: each worker keeps and returns the values that are dealt to it.

A worker's slice of a parameter is that of its layout. A whole parameter is dealt to one worker, and the slices of the
others are empty. Rank 0 has the buffers and the modules' extra state as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from safetensors.torch import save
from torch import Tensor

from sparkdl.checkpoint.slices import SharedState, Slices, deal, owners
from sparkdl.cluster.group.world import Group
from sparkdl.io.serialization import pack_state, unpack_state
from sparkdl.io.weights import Slice, entries
from sparkdl.training.layouts import Replica

_KEY = "weights of "  # before a parameter's name, whose slice of the layout may be another


def weight_slices(replica: Replica, group: Group) -> Slices:
    """This worker's slice of each parameter, by the keys of ``copy_weights``; the same after each step."""
    parameters = _tensors(replica)[0]
    whole = {name: value.nbytes for name, value in parameters.items() if name not in replica.slices}
    owner = owners(whole, group.size)
    slices: dict[str | int, Slice] = {}
    for name, value in parameters.items():
        slices[_KEY + name] = replica.slices.get(name) or Slice.whole(value.shape)
        if value.dim() and owner.get(name, group.rank) != group.rank:  # a scalar has no empty slice: all have it
            slices[_KEY + name] = Slice(tuple(value.shape), (range(0), *map(range, value.shape[1:])))
    return slices


def copy_weights(replica: Replica, slices: Slices, rank: int) -> dict[str, Any]:
    """Copies on the CPU: ``"slices"`` of parameters, and on rank 0 ``"others"`` and ``"aliases"``, else empty."""
    parameters, others, aliases = _tensors(replica)
    own = {}
    for key, part in slices.items():
        value = parameters[str(key).removeprefix(_KEY)]
        own[key] = _copied(value if tuple(value.shape) == part.sizes else value.new_empty(part.sizes))
    first = {"others": {name: _copied(value) for name, value in others.items()}, "aliases": aliases}
    return {"slices": own, **(first if rank == 0 else {"others": {}, "aliases": {}})}


def pack_weights(weights: dict[str, Any], slices: Slices, group: Group) -> bytes:
    """The bytes of ``copy_weights``, for ``merge_weights``."""
    part, index = deal(weights["slices"], slices, group.rank, group.size)
    return pack_state({"slices": part, "index": index, "others": weights["others"], "aliases": weights["aliases"]})


def merge_weights(parts: Sequence[bytes]) -> bytes:
    """The weights as ``sparkdl.io.weights.pack`` packs them, from the bytes of all workers in rank order."""
    state = SharedState({}, {})
    others: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for packed in parts:
        part = unpack_state(packed, views=True)
        state.add(part["slices"], part["index"])
        others |= {name: value.clone() for name, value in part["others"].items()}
        aliases |= part["aliases"]
    state.check()
    tensors = {name.removeprefix(_KEY): value for name, value in state.state.items()}
    return save(tensors | others, {"aliases": json.dumps(aliases)})


def _tensors(replica: Replica) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Parameters, other tensors to save, and aliases, by name; a tied parameter has the first of its names."""
    tensors, aliases = entries(replica.module)
    names = dict(replica.module.named_parameters(remove_duplicate=False))
    parameters = {name: value for name, value in tensors.items() if name in names and name not in aliases}
    return parameters, {name: value for name, value in tensors.items() if name not in parameters}, aliases


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()
