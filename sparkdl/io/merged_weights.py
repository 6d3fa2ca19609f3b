"""Merges the parts of weights that workers return to the bytes of ``sparkdl.io.weights.pack``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from sparkdl.errors import WorkerFailed
from sparkdl.io.files import Buffer, Folder, join
from sparkdl.io.redaction import public
from sparkdl.io.serialization import StoredTensor, stored_state, unpack_state
from sparkdl.io.weights import Slice
from sparkdl.io.weights_file import CHUNK, WeightsFile, layout_of

_Source = tuple[Any, StoredTensor, Slice]  # an open file, where it has values, and which values of the whole tensor


def merge_weights(parts: Sequence[bytes]) -> bytes:
    """Merge the bytes of ``pack_part`` of all workers, in rank order."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    missing: dict[str, int] = {}  # values
    for packed in parts:
        state = unpack_state(packed, views=True)
        for name, (part, values) in _parameters(state):
            if part == Slice.whole(part.shape):
                tensors[name], missing[name] = values, 0
                continue
            if name not in tensors:
                tensors[name] = torch.empty(part.shape, dtype=values.dtype)
                missing[name] = math.prod(part.shape)
            tensors[name][part.index] = values
            missing[name] -= values.numel()
        tensors |= {name: value.clone() for name, value in state["others"].items()}
        aliases |= state["aliases"]
    _check(missing)
    return save(tensors, {"aliases": json.dumps(aliases)})


def merge_files(parts: Sequence[WeightsFile], folder: str, rows_of: Callable[[str], WeightsFile]) -> WeightsFile:
    """Merge files of ``pack_part`` to one file in ``folder``; holds at most one tensor or 64 MiB.

    The file is named by its parts, and one that exists stays. ``rows_of`` gives the file of a table's rows, from what
    its writer returned.
    """
    sources: dict[str, list[_Source]] = {}
    aliases: dict[str, str] = {}
    tables: dict[str, list[WeightsFile]] = {}
    with ExitStack() as stack:
        for part in parts:
            file = stack.enter_context(Folder.of(part.uri).open_file(""))
            if file.size() != part.size:
                raise WorkerFailed(f"{public(part.uri)} has {file.size()} bytes, and a worker wrote {part.size} there")
            state = stored_state(partial(_read_at, file))
            for name, (values, stored) in _parameters(state):
                sources.setdefault(name, []).append((file, stored, values))
            sources |= {name: [(file, one, Slice.whole(one.shape))] for name, one in state["others"].items()}
            aliases |= state["aliases"]
            for name, written in state["tables"].items():
                tables.setdefault(name, []).append(rows_of(written))
        about = {name: (places[0][1].dtype, places[0][2].shape) for name, places in sources.items()}
        header, names = layout_of(about, {"aliases": json.dumps(aliases)})
        digest = hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()[:16]
        uri = join(folder, f"weights-{digest}.safetensors")
        total = len(header) + sum(math.prod(shape) * dtype.itemsize for dtype, shape in about.values())
        merged = WeightsFile.once(uri, total, chain([header], *(_bytes_of(name, sources[name]) for name in names)))
        return replace(merged, tables={name: tuple(files) for name, files in tables.items()})


def _parameters(state: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Slice, Any]]]:
    for name, values in state["parameters"].items():
        yield name, (Slice.of(state["slices"][name]), values)


def _bytes_of(name: str, sources: Sequence[_Source]) -> Iterator[Buffer]:
    """The bytes of a whole tensor, read when they are due."""
    file, stored, part = sources[0]
    if part == Slice.whole(part.shape):
        for begin in range(0, stored.nbytes, CHUNK):
            yield _read_at(file, min(CHUNK, stored.nbytes - begin), stored.offset + begin)
        return
    tensor, missing = torch.empty(part.shape, dtype=stored.dtype), math.prod(part.shape)
    for file, stored, part in sources:
        data = bytearray(_read_at(file, stored.nbytes, stored.offset))
        tensor[part.index] = torch.frombuffer(data, dtype=stored.dtype).view(stored.shape)
        missing -= math.prod(stored.shape)
    _check({name: missing})
    yield tensor.view(-1).view(torch.uint8).numpy().data


def _check(missing: Mapping[str, int]) -> None:
    if lacking := [name for name, count in missing.items() if count > 0]:
        raise WorkerFailed(f"the workers returned only some of the values of {lacking[0]}")


def _read_at(file: Any, count: int, offset: int) -> bytes:
    return bytes(file.read_at(count, offset))
