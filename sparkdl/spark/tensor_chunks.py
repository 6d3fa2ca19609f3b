"""The results of a round's tasks: rows of tensors' chunks on executors, and tensors again on the driver."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from sparkdl.cluster.tasks import Mapped, RoundWork, Tensors, Tree

PIECES = "part int, piece int, name string, payload binary"

RESULT = -1
"""The piece of what is not reduced apart: the note, small tensors, what went wrong."""

Row = tuple[int, int, str, bytes]
"""Part, piece, name and payload, as in ``PIECES``. A result's name is empty, or says why there is none."""

_PIECE = 4 << 20  # bytes of a piece: Spark sorts them, and a task that reduces holds a few
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}


@dataclass(frozen=True)
class Title:
    """What a piece is: some values of a tensor.

    Attributes:
        name: of the tensor.
        shape: of the whole tensor.
        dtype: its dtype's name in torch.
        first: the piece's first value, in the tensor made flat.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    first: int

    @classmethod
    def of_json(cls, text: str) -> Title:
        """The title in a row."""
        name, shape, dtype, first = json.loads(text)
        return cls(name, tuple(shape), dtype, first)

    def to_json(self) -> str:
        """As a row has it."""
        return json.dumps([self.name, list(self.shape), self.dtype, self.first])

    def values(self, payload: Any) -> Tensor:
        """The piece's values, a copy of the payload."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        data = bytearray(payload)
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def cut_tensors(found: Mapped) -> Iterator[Row]:
    """The tensors in pieces, of which the same number is the same place in every part's."""
    piece = 0
    for name, tensor in found.tensors.items():
        flat = tensor.contiguous().reshape(-1)
        step = max(1, _PIECE // flat.element_size())
        for first in range(0, max(1, len(flat)), step):
            title = Title(name, tuple(tensor.shape), _name(flat.dtype), first)
            yield found.index, piece, title.to_json(), _bytes(flat[first : first + step])
            piece += 1


def reduced_piece(tree: Tree, parts: int, piece: int, title: Title) -> pa.RecordBatch:
    """The row of a piece that all parts have gone into.

    Args:
        tree: of the parts' values.
        parts: how many there were.
        piece: its number.
        title: of each part's piece.
    """
    [tensor] = tree.result().values()
    return record_batch(PIECES, parts, piece, replace(title, dtype=_name(tensor.dtype)).to_json(), _bytes(tensor))


def record_batch(schema: str, *values: Any) -> pa.RecordBatch:
    """One row as a batch.

    Args:
        schema: names and types of its columns, as Spark has them.
        values: of the columns.
    """
    fields = [field.split() for field in schema.split(", ")]
    arrays = [pa.array([value], _TYPES[kind]) for value, (_, kind) in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


def results(rows: Iterable[Row]) -> Iterator[Row]:
    """What is not a piece."""
    return (row for row in rows if row[1] < 0)


def pieces(absent: Container[int], rows: Iterable[Row]) -> Iterator[Row]:
    """What is, but of parts that were absent."""
    return (row for row in rows if row[1] >= 0 and row[0] not in absent)


class Results:
    """The results of the parts, each of which comes once.

    Args:
        parts: how many there are.

    Attributes:
        large: whether there was one that should have been cut into pieces.
        pieces: how many pieces each part's tensors were cut into; 0 where the results hold them.
        bytes: of the tensors that were cut.
    """

    def __init__(self, parts: int) -> None:
        self.large = False
        self.pieces = self.bytes = 0
        self._parts = parts
        self._found: dict[int, Mapped] = {}

    def take(self, rows: Iterable[Row]) -> None:
        """Take what a job has brought."""
        for part, _, name, payload in rows:
            if name == "missing":
                continue
            if name == "large":
                self.large = True
            found = Mapped(part) if name == "large" else Mapped.unpacked(bytes(payload))
            if name == "cut":
                self.pieces, self.bytes, note = found.note
                found = replace(found, note=note)
            self._found[part] = found

    @property
    def absent(self) -> list[int]:
        """Parts of which nothing has come."""
        return [part for part in range(self._parts) if part not in self._found]

    @property
    def found(self) -> list[Mapped]:
        """What has come, in the parts' order."""
        return [self._found[part] for part in sorted(self._found)]

    @property
    def notes(self) -> list[Any]:
        """The parts' notes, in their order."""
        return [each.note for each in self.found]

    def reduced(self, work: RoundWork) -> Tensors:
        """What all parts come to, reduced here."""
        tree = Tree(work.reduce)
        for each in self.found:
            tree.push(each.tensors)
        return tree.result()


def assembled(rows: Iterable[Row]) -> Tensors:
    """Tensors from their pieces, which come in any order: one piece is held besides them."""
    flat: dict[str, tuple[int, tuple[int, ...], torch.Tensor]] = {}
    for _, piece, name, payload in rows:
        title = Title.of_json(name)
        values = title.values(payload)
        if title.name not in flat:
            size = torch.Size(title.shape).numel()
            flat[title.name] = piece, title.shape, torch.empty(size, dtype=values.dtype)
        earliest, shape, whole = flat[title.name]
        whole[title.first : title.first + len(values)] = values
        flat[title.name] = min(piece, earliest), shape, whole
    ordered = sorted(flat.items(), key=lambda item: item[1][0])
    return {name: whole.view(shape) for name, (_, shape, whole) in ordered}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if len(tensor) else b""
