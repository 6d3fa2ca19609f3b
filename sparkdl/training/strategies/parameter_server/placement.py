"""Which rows of the weights each parameter shard holds; it follows from shapes and dtypes alone.

Tensors are cut into pieces of rows, in the order of the parameters. A piece has at most 4 MB, and of small models a
part of a shard. Each shard takes consecutive pieces of about equal bytes, so that it has at most one range of rows of
each tensor: a ``Slice``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparkdl.io.weights import Slice

PIECE_BYTES = 4 << 20
_PIECES = 8  # of a shard, at least: shards then differ by an eighth of their bytes at most
_ALIGNMENT = 16  # bytes; tensors of all dtypes can begin there


@dataclass(frozen=True)
class Portion:
    """The rows of all tensors that one shard holds.

    Attributes:
        shapes: of the whole tensors; a scalar counts as one row.
        dtypes: of the tensors.
        rows: of each tensor, maybe none.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    rows: tuple[range, ...]

    @property
    def slices(self) -> list[Slice]:
        """The rows as slices of the tensors."""
        ranges = [(rows, *map(range, shape[1:])) for rows, shape in zip(self.rows, self.shapes, strict=True)]
        return [Slice(shape, part) for shape, part in zip(self.shapes, ranges, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of a buffer."""
        return sum(size for _, size in self._layout())

    def allocate(self) -> Tensor:
        """A buffer of zeros for all rows, as bytes."""
        return torch.zeros(self.nbytes, dtype=torch.uint8, device="cpu")

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The rows of each tensor in a buffer."""
        layout = [*self._layout()]
        parts = zip(torch.split(buffer, [size for _, size in layout]), self.dtypes, layout, strict=True)
        return [part.view(dtype)[: math.prod(sizes)].view(sizes) for part, dtype, (sizes, _) in parts]

    def cut(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The rows of whole tensors, as views."""
        return [rows_of(tensor, rows) for tensor, rows in zip(tensors, self.rows, strict=True)]

    def _layout(self) -> Iterator[tuple[tuple[int, ...], int]]:
        for part, dtype in zip(self.slices, self.dtypes, strict=True):
            size = math.prod(part.sizes) * dtype.itemsize
            yield part.sizes, -(-size // _ALIGNMENT) * _ALIGNMENT


def no_rows(tensors: Sequence[Tensor]) -> Portion:
    """The portion of a worker that hosts no shard."""
    [every] = portions(tensors, 1)
    return replace(every, rows=(range(0),) * len(every.rows))


def rows_of(tensor: Tensor, rows: range) -> Tensor:
    """Rows of a whole tensor, as a view; a scalar is one row."""
    return (tensor if tensor.dim() else tensor.view(1))[rows.start : rows.stop]


def portions(tensors: Sequence[Tensor], shards: int) -> list[Portion]:
    """The rows of each shard; tensors may be on the device ``meta``."""
    shapes = tuple(tuple(tensor.shape) or (1,) for tensor in tensors)
    total = max(1, sum(tensor.nbytes for tensor in tensors))
    largest = min(PIECE_BYTES, max(1, total // (_PIECES * shards)))
    ends = [[0] * len(shapes) for _ in range(shards)]  # of the rows of each shard, by tensor
    before = 0  # bytes of earlier pieces
    for index, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True)):
        row = max(1, math.prod(shape[1:]) * tensor.element_size())
        height = max(1, largest // row)
        for start in range(0, shape[0], height):
            stop = min(start + height, shape[0])
            middle = before + (stop - start) * row / 2
            ends[min(int(middle * shards / total), shards - 1)][index] = stop
            before += (stop - start) * row
    dtypes, starts, parts = tuple(tensor.dtype for tensor in tensors), [0] * len(shapes), []
    for stops in ends:
        rows = tuple(range(start, max(start, stop)) for start, stop in zip(starts, stops, strict=True))
        parts.append(Portion(shapes, dtypes, rows))
        starts = [one.stop for one in rows]
    return parts
