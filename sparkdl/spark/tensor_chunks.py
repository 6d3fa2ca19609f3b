"""Results of a round's tasks: rows of tensor chunks on executors, tensors on the driver."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.cluster.tasks import TaskResult, Tensors
from sparkdl.data.shard_store import bytes_of

PIECES = "shard int, piece int, name string, payload binary"

RESULT_CHUNK = -1
"""The chunk number of a result that is not split: the note, small tensors, or an error."""

TaskRow = tuple[int, int, str, bytes]
"""Shard, chunk number, name and payload, as in ``PIECES``; a result's name is empty, or a status like ``missing``."""

_PIECE = 4 << 20  # bytes of a chunk: Spark sorts chunks, and a reducing task holds a few
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}


class ChunksLost(Exception):
    """Results were lost between two jobs of a round."""


@dataclass(frozen=True)
class ChunkHeader:
    """Header of a chunk, which holds consecutive values of a tensor."""

    name: str
    shape: Sequence[int]  # of the entire tensor
    first: int  # index of the chunk's first value in the flattened tensor
    dtype: str = ""  # the import path of a torch dtype

    def to_json(self, tensor: Tensor) -> str:
        """The fields for a row, with the dtype of a tensor."""
        return json.dumps([self.name, self.shape, self.first, str(tensor.dtype)])

    def values(self, payload: Any) -> Tensor:
        """The chunk's values, a copy of the payload."""
        dtype: torch.dtype = resolve_name(self.dtype)
        data = bytearray(payload)
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def cut_tensors(result: TaskResult) -> Iterator[TaskRow]:
    """Split tensors into chunks; a chunk number means the same slice in every shard's result."""
    piece = 0
    for name, tensor in result.tensors.items():
        flat = tensor.contiguous().reshape(-1)
        step = max(1, _PIECE // flat.element_size())
        for first in range(0, max(1, len(flat)), step):
            header = ChunkHeader(name, tensor.shape, first).to_json(tensor)
            yield result.index, piece, header, bytes_of(flat[first : first + step])
            piece += 1


def record_batch(schema: str, *values: Any) -> pa.RecordBatch:
    """One row of ``values`` as a batch; ``schema`` has the names and Spark types of the columns."""
    fields = [field.split() for field in schema.split(", ")]
    arrays = [pa.array([value], _TYPES[kind]) for value, (_, kind) in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


def is_result(row: TaskRow) -> bool:
    """Whether a row is no chunk."""
    return row[1] == RESULT_CHUNK


def is_piece(absent: Container[int], row: TaskRow) -> bool:
    """Whether a row is a chunk, and not of an ``absent`` shard."""
    return row[1] != RESULT_CHUNK and row[0] not in absent


class RoundResults:
    """The results of a round's shards, one per shard."""

    def __init__(self, num_shards: int) -> None:
        self.large = False  # whether a result should have been split into chunks
        self.pieces = self.bytes = 0  # of each shard's tensors, if they were split into chunks
        self._num_shards = num_shards
        self._results: dict[int, TaskResult] = {}

    def take(self, rows: Iterable[TaskRow]) -> None:
        """Add the rows of a job."""
        for shard, _, name, payload in rows:
            if name == "missing":
                continue
            self.large |= name == "large"
            result = TaskResult(shard) if name == "large" else TaskResult.unpacked(bytes(payload))
            if name == "cut":
                self.pieces, self.bytes, note = result.note
                result = replace(result, note=note)
            self._results[shard] = result

    @property
    def absent(self) -> list[int]:
        """Shards without a result."""
        return [shard for shard in range(self._num_shards) if shard not in self._results]

    @property
    def in_order(self) -> list[TaskResult]:
        """The results in the shards' order."""
        return [self._results[shard] for shard in sorted(self._results)]

    @property
    def notes(self) -> list[Any]:
        """The shards' notes, in order."""
        return [result.note for result in self.in_order]


def assembled(rows: Iterable[TaskRow]) -> Tensors:
    """Tensors from their chunks, in any order; holds one chunk besides the tensors."""
    tensors, order = Tensors(), dict[str, int]()
    for _, piece, text, payload in rows:
        header = ChunkHeader(*json.loads(text))
        values = header.values(payload)
        if header.name not in tensors:
            tensors[header.name] = values.new_empty(header.shape)
        tensors[header.name].view(-1)[header.first : header.first + len(values)] = values
        order[header.name] = min(piece, order.get(header.name, piece))
    return {name: tensors[name] for name in sorted(order, key=order.__getitem__)}
