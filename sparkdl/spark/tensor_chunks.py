"""Results of a round's tasks: rows of tensor chunks on executors, tensors on the driver."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.cluster.tasks import MapReduce, TaskResult, Tensors, reduce_results

PIECES = "shard int, piece int, name string, payload binary"

RESULT_CHUNK = -1
"""The chunk number of a result that is not split: the note, small tensors, or an error."""

TaskRow = tuple[int, int, str, bytes]
"""Shard, chunk number, name and payload, as in ``PIECES``; a result's name is empty, or a status like ``missing``."""

_PIECE = 4 << 20  # bytes of a chunk: Spark sorts chunks, and a reducing task holds a few
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}


@dataclass(frozen=True)
class ChunkHeader:
    """Header of a chunk, which holds consecutive values of a tensor.

    Attributes:
        name: of the tensor.
        shape: of the entire tensor.
        dtype: the name of its torch dtype.
        first: index of the chunk's first value in the flattened tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    first: int

    @classmethod
    def of_json(cls, text: str) -> ChunkHeader:
        """Parse a row's header."""
        name, shape, dtype, first = json.loads(text)
        return cls(name, tuple(shape), dtype, first)

    def to_json(self) -> str:
        """Serialize the header for a row."""
        return json.dumps([self.name, list(self.shape), self.dtype, self.first])

    def with_dtype(self, tensor: Tensor) -> ChunkHeader:
        """The header with the dtype of a tensor."""
        return replace(self, dtype=str(tensor.dtype).removeprefix("torch."))

    def values(self, payload: Any) -> Tensor:
        """The chunk's values, a copy of the payload."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        data = bytearray(payload)
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def cut_tensors(found: TaskResult) -> Iterator[TaskRow]:
    """Split tensors into chunks; a chunk number means the same slice in every shard's result."""
    piece = 0
    for name, tensor in found.tensors.items():
        flat = tensor.contiguous().reshape(-1)
        step = max(1, _PIECE // flat.element_size())
        for first in range(0, max(1, len(flat)), step):
            title = ChunkHeader(name, tuple(tensor.shape), "", first).with_dtype(flat)
            yield found.index, piece, title.to_json(), bytes_of(flat[first : first + step])
            piece += 1


def record_batch(schema: str, *values: Any) -> pa.RecordBatch:
    """One row of ``values`` as a batch; ``schema`` has the names and Spark types of the columns."""
    fields = [field.split() for field in schema.split(", ")]
    arrays = [pa.array([value], _TYPES[kind]) for value, (_, kind) in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


def results(rows: Iterable[TaskRow]) -> Iterator[TaskRow]:
    """The rows that are not chunks."""
    return (row for row in rows if row[1] < 0)


def pieces(absent: Container[int], rows: Iterable[TaskRow]) -> Iterator[TaskRow]:
    """The chunks, except those of ``absent`` shards."""
    return (row for row in rows if row[1] >= 0 and row[0] not in absent)


class Results:
    """The results of a round's shards, one per shard.

    Args:
        num_shards: number of shards.

    Attributes:
        large: whether a result should have been split into chunks.
        pieces: number of chunks of each shard's tensors; 0 if they were not split.
        bytes: of the tensors that were split.
    """

    def __init__(self, num_shards: int) -> None:
        self.large = False
        self.pieces = self.bytes = 0
        self._num_shards = num_shards
        self._found: dict[int, TaskResult] = {}

    def take(self, rows: Iterable[TaskRow]) -> None:
        """Add the rows of a job."""
        for shard, _, name, payload in rows:
            if name == "missing":
                continue
            self.large |= name == "large"
            found = TaskResult(shard) if name == "large" else TaskResult.unpacked(bytes(payload))
            if name == "cut":
                self.pieces, self.bytes, note = found.note
                found = replace(found, note=note)
            self._found[shard] = found

    @property
    def absent(self) -> list[int]:
        """Shards without a result."""
        return [shard for shard in range(self._num_shards) if shard not in self._found]

    @property
    def found(self) -> list[TaskResult]:
        """The results in the shards' order."""
        return [self._found[shard] for shard in sorted(self._found)]

    @property
    def notes(self) -> list[Any]:
        """The shards' notes, in order."""
        return [each.note for each in self.found]

    def reduced(self, work: MapReduce) -> Tensors:
        """Reduce the results of all shards on the driver."""
        return reduce_results(work, self.found)


def assembled(rows: Iterable[TaskRow]) -> Tensors:
    """Tensors from their chunks, in any order; holds one chunk besides the tensors."""
    flat: dict[str, tuple[int, tuple[int, ...], torch.Tensor]] = {}
    for _, piece, name, payload in rows:
        title = ChunkHeader.of_json(name)
        values = title.values(payload)
        if title.name not in flat:
            size = torch.Size(title.shape).numel()
            flat[title.name] = piece, title.shape, torch.empty(size, dtype=values.dtype)
        earliest, shape, whole = flat[title.name]
        whole[title.first : title.first + len(values)] = values
        flat[title.name] = min(piece, earliest), shape, whole
    ordered = sorted(flat.items(), key=lambda item: item[1][0])
    return {name: whole.view(shape) for name, (_, shape, whole) in ordered}


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if len(tensor) else b""
