"""One copy of what all members have alike: every member writes a part of it, and reads all parts.

>>> from torch import ones
>>> nested = {"weights": {"a": ones(4), "b": ones(2), "c": ones(2)}, "rate": 0.1}
>>> parts = [deal(nested, rank, 2) for rank in range(2)]
>>> [sorted(part["weights"]) for part in parts], [part.get("rate") for part in parts]
([['a'], ['b', 'c']], [0.1, None])
>>> merge(parts).keys() == nested.keys(), sorted(merge(parts)["weights"])
(True, ['a', 'b', 'c'])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

_Path = tuple[Any, ...]


def deal(nested: Mapping[Any, Any], rank: int, size: int) -> dict[Any, Any]:
    """This member's part of what all members have alike.

    Tensors that are values of dicts are dealt out, the largest first, each to the member that has the fewest bytes by
    then; all else is rank 0's.

    Args:
        nested: dicts within dicts; the same on every member, but for the tensors' values where they lie.
        rank: this member's.
        size: how many members there are.
    """
    loads, owner = [0] * size, {}
    tensors = [(path, value) for path, value in _leaves(nested, ()) if isinstance(value, Tensor)]
    for path, tensor in sorted(tensors, key=lambda found: -found[1].nbytes):
        owner[path] = min(range(size), key=lambda each: loads[each])
        loads[owner[path]] += tensor.nbytes
    return _kept(nested, (), {path for path, _ in _leaves(nested, ()) if owner.get(path, 0) == rank})


def merge(parts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """The whole that ``deal`` took apart, from the parts of all members."""
    merged: dict[Any, Any] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict):
                merged[key] = merge([merged.get(key, {}), value])
            else:
                merged[key] = value
    return merged


def _leaves(nested: Mapping[Any, Any], path: _Path) -> Iterator[tuple[_Path, Any]]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _kept(nested: Mapping[Any, Any], path: _Path, own: set[_Path]) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    for key, value in nested.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            kept[key] = _kept(value, here, own)  # the dicts themselves are everybody's, empty ones as well
        elif here in own:
            kept[key] = value
    return kept
