"""Slices of the shared state: what each worker writes to a checkpoint, and what a gang of any size reads from it.

The shared state is nested dicts. A tensor under the name or the index of a parameter is this worker's slice of that
parameter if it has the slice's shape. So weights, moments of an optimizer and averages of weights need no code of
their own. Any other tensor is whole, and equal on all workers, as is what is no tensor.

A worker writes its slices, and the whole tensors that ``deal`` gives to it, with an index of both. A worker of a later
gang reads the files that overlap its slices, one after another, and copies the values that it wants.

Rows of tables are in files of their own, which a worker writes from live memory, and reads one after another: nobody
ever holds a second copy of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparkdl.checkpoint.async_saver import copied
from sparkdl.errors import CheckpointDamaged
from sparkdl.io.weights import Slice, Slices, owners

FILE = "shared-"  # before the rank of the worker that wrote the file
_ROWS = "-rows-"  # in the name of a file of rows
_NOBODY = -1
_ROWS_FILE = 16 << 20  # bytes of the smallest files of rows of a larger tensor
_ROWS_FILES = 64  # files of a tensor at most

Index = Sequence[Mapping[str, Any]]
"""The tensors of a file, as JSON: ``path`` in the shared state, ``shape`` of the whole tensor, ``ranges`` of values."""
_Path = tuple[str | int, ...]


def deal(
    shared: Mapping[Any, Any],
    slices: Slices,
    rank: int,
    size: int,
    *,
    complete: bool = True,
    divided: frozenset[str] = frozenset(),
) -> tuple[dict[Any, Any], Index]:
    """This worker's part of the shared state, and its index; ``row_files`` has the slices named in ``divided``.

    Whole tensors are dealt by size, the largest first, to the worker with the fewest bytes; rank 0 gets what is no
    tensor, and tensors without values. If the states are not ``complete``, each worker has other parameters. A worker
    then saves every entry of the parameters that it has, such as the optimizer's count of their steps.
    """
    tensors = dict(_tensors(shared, ()))
    parts = {path: part for path, tensor in tensors.items() if (part := _slice_of(path, tensor, slices)) is not None}
    in_files = {path for path in parts if not divided.isdisjoint(path)}
    mine = {*parts} if complete else {path for path in tensors if _at(path, slices) is not None}
    dealt = owners({path: one.nbytes for path, one in tensors.items() if path not in mine and one.numel()}, size)

    def owner(path: _Path) -> int:
        if path in in_files:
            return _NOBODY
        if path in mine or not (complete or _at(path, slices) is None):
            return rank
        return dealt.get(path, 0)

    index = []
    for path, tensor in tensors.items():
        if owner(path) == rank:
            part = parts.get(path) or Slice.whole(tensor.shape)
            index.append({"path": list(path), **part.entry()})
    return _select(shared, (), owner, rank), index


def row_files(
    shared: Mapping[Any, Any], slices: Slices, rank: int, divided: frozenset[str]
) -> Iterator[tuple[str, dict[Any, Any], Index]]:
    """The names, states and indices of files with this worker's slices named in ``divided``; tensors are live."""
    number = 0
    for path, tensor in _tensors(shared, ()):
        part = None if divided.isdisjoint(path) else _slice_of(path, tensor, slices)
        if part is None or not tensor.numel():
            continue
        count = max(1, max(_ROWS_FILE, tensor.nbytes // _ROWS_FILES) * len(tensor) // tensor.nbytes)  # rows of a file
        for first in range(0, len(tensor), count):
            rows = slice(first, first + count)
            state: dict[Any, Any] = {path[-1]: tensor[rows]}
            for key in reversed(path[:-1]):
                state = {key: state}
            entry = Slice(part.shape, (part.ranges[0][rows], *part.ranges[1:])).entry()
            yield f"{FILE}{rank:05d}{_ROWS}{number:05d}", state, [{"path": list(path), **entry}]
            number += 1


def files_of(index: Mapping[str, Index], slices: Slices) -> list[str]:
    """The files that a worker with these slices reads: the first, which alone has what is no tensor, and overlaps."""
    first = f"{FILE}{0:05d}"

    def wanted(name: str, entry: Mapping[str, Any]) -> bool:
        # A worker without rows of a table reads their shape, which no other file has.
        part = _mine(tuple(entry["path"]), tuple(entry["shape"]), slices)
        return _wanted(entry, slices) or (_ROWS in name and not all(part.sizes))

    return [name for name, entries in index.items() if name == first or any(wanted(name, one) for one in entries)]


@dataclass
class SharedState:
    """A worker's shared state, read file by file.

    Attributes:
        live: nested dicts of tensors that take the values; a value without a live tensor of its shape and dtype gets a
            new one on the CPU.
        slices: of this worker.
        state: nested dicts of the tensors and the other values.
    """

    live: Mapping[Any, Any]
    slices: Slices
    state: dict[Any, Any] = field(default_factory=dict)
    _missing: dict[_Path, int] = field(default_factory=dict)  # values

    def add(self, part: Mapping[Any, Any], index: Index) -> None:
        """Copy the values of one file, which ``deal`` made with this index."""
        entries = {tuple(entry["path"]): Slice.of(entry) for entry in index}
        with torch.no_grad():
            self._merge(part, (), self.state, entries)

    def check(self) -> None:
        """Raise CheckpointDamaged if the files lack values of a tensor."""
        if lacking := [path for path, missing in self._missing.items() if missing > 0]:
            raise CheckpointDamaged(f"the checkpoint has only some of the values of {'.'.join(map(str, lacking[0]))}")

    def _merge(
        self, part: Mapping[Any, Any], path: _Path, state: dict[Any, Any], entries: Mapping[_Path, Slice]
    ) -> None:
        for key, value in part.items():
            below = (*path, key)
            if isinstance(value, Mapping):
                self._merge(value, below, state.setdefault(key, {}), entries)
            elif not isinstance(value, Tensor):
                state[key] = copied(value)
            elif (target := self._copy(below, value, entries[below], state.get(key))) is not None:
                state[key] = target

    def _copy(self, path: _Path, value: Tensor, saved: Slice, target: Tensor | None) -> Tensor | None:
        mine = _mine(path, saved.shape, self.slices)
        overlap = mine.overlap(saved)
        if overlap is None and all(mine.sizes):
            return target
        if target is None:
            target = _live(self.live, path, mine.sizes, value.dtype)
            self._missing[path] = math.prod(mine.sizes)
        if overlap is not None:
            target[overlap[0]].copy_(value[overlap[1]])
            self._missing[path] -= value[overlap[1]].numel()
        return target


def _tensors(nested: Mapping[Any, Any], path: _Path) -> Iterator[tuple[_Path, Tensor]]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _tensors(value, (*path, key))
        elif isinstance(value, Tensor):
            yield (*path, key), value


def _select(nested: Mapping[Any, Any], path: _Path, owner: Callable[[_Path], int], rank: int) -> dict[Any, Any]:
    return {
        key: _select(value, (*path, key), owner, rank) if isinstance(value, Mapping) else value
        for key, value in nested.items()
        if isinstance(value, Mapping) or owner((*path, key)) == rank  # every part has all dicts, even empty ones
    }


def _at(path: _Path, slices: Slices) -> Slice | None:
    return next((slices[key] for key in reversed(path) if key in slices), None)


def _slice_of(path: _Path, tensor: Tensor, slices: Slices) -> Slice | None:
    part = _at(path, slices)
    return part if part is not None and tuple(tensor.shape) == part.sizes else None


def _mine(path: _Path, shape: tuple[int, ...], slices: Slices) -> Slice:
    part = _at(path, slices)
    return part if part is not None and part.shape == shape else Slice.whole(shape)


def _wanted(entry: Mapping[str, Any], slices: Slices) -> bool:
    saved = Slice.of(entry)
    return _mine(tuple(entry["path"]), saved.shape, slices).overlap(saved) is not None


def _live(live: Any, path: _Path, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    for key in path:
        live = live.get(key) if isinstance(live, Mapping) else None
    fits = isinstance(live, Tensor) and tuple(live.shape) == sizes and live.dtype == dtype
    return live.detach() if fits else torch.empty(sizes, dtype=dtype)
