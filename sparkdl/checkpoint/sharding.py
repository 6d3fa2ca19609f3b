"""Shards the replicated state: every worker writes one shard of it, and reads all shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

_Path = tuple[Any, ...]


def shard(nested: Mapping[Any, Any], rank: int, size: int) -> dict[Any, Any]:
    """This worker's shard of nested dicts, which are equal on every worker, except for tensors' values.

    Tensors are assigned by size, the largest first, to the worker with the fewest bytes; rank 0 gets the rest.
    """
    loads, owner = [0] * size, {}
    tensors = [(path, value) for path, value in _leaves(nested, ()) if isinstance(value, Tensor)]
    for path, tensor in sorted(tensors, key=lambda leaf: -leaf[1].nbytes):
        owner[path] = min(range(size), key=loads.__getitem__)
        loads[owner[path]] += tensor.nbytes
    return _select(nested, (), lambda path: owner.get(path, 0) == rank)


def unshard(shards: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Merge the shards of all workers, the inverse of ``shard``."""
    merged: dict[Any, Any] = {}
    for nested in shards:
        for key, value in nested.items():
            merged[key] = unshard([merged.get(key, {}), value]) if isinstance(value, dict) else value
    return merged


def _leaves(nested: Mapping[Any, Any], path: _Path) -> Iterator[tuple[_Path, Any]]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _select(nested: Mapping[Any, Any], path: _Path, owned: Callable[[_Path], bool]) -> dict[Any, Any]:
    return {
        key: _select(value, (*path, key), owned) if isinstance(value, Mapping) else value
        for key, value in nested.items()
        if isinstance(value, Mapping) or owned((*path, key))  # every shard has all dicts, even empty ones
    }
