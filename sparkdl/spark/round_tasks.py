"""What runs on executors in rounds: packing a partition, mapping a part, reducing pieces.

A task takes all of its input whatever happens: one that leaves some behind loses its Python worker, and the next round
would wait for another to import torch.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import torch
from pyspark import TaskContext
from torch import Tensor

from sparkdl.errors import InvalidInput
from sparkdl.feed.blocks import Store, pack
from sparkdl.feed.column_file import Layout
from sparkdl.feed.columns import Columns
from sparkdl.feed.part import Part, numbers
from sparkdl.feed.spool import Spool
from sparkdl.map_reduce import Mapped, Tree, mapped
from sparkdl.shipping import unship
from sparkdl.spark.worker import spare_imports
from sparkdl.state import unpack_state
from sparkdl.tensors import DTYPES

PACKED = "part int, block int, rows bigint, about string, payload binary"
PIECES = "part int, piece int, name string, dtype string, payload binary"

_PIECE = 4 << 20  # bytes of a row: Arrow batches and driver sockets stay small
_RESULT = -1  # the piece of what is not reduced
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class PackTask:
    """Packs a partition into blocks.

    Attributes:
        columns: which columns become which tensors.
        names: the columns' names, in the order in which they arrive.
    """

    columns: Columns
    names: tuple[str, ...]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The partition's blocks; the first one says how many rows there are, of what, or what is wrong with them."""
        index, remaining = _partition(), iter(batches)
        try:
            spool = Spool(self.columns, directory=_local_directory(index), part=index)
            for batch in remaining:
                spool.append(pa.RecordBatch.from_arrays(batch.columns, names=list(self.names)))
            spool.check()
            about = {"layout": spool.layout(), "host": os.uname().nodename}
            blocks: Iterable[bytes] = _blocks(spool, self.columns, index)
            rows = spool.rows
        except InvalidInput as error:
            rows, about, blocks = 0, {"trouble": error.message}, [b""]
        for _ in remaining:
            continue
        for block, payload in enumerate(blocks):
            yield _row(PACKED, index, block, rows, json.dumps(about), payload)


def _blocks(spool: Spool, columns: Columns, index: int) -> Iterable[bytes]:
    tensors = spool.seal({})
    order = None if columns.row_id is None else spool.order(numbers(tensors, columns.row_id.name))
    return pack(Part(index, 1, spool.rows, (spool.rows,), columns, tensors, order))


@dataclass(frozen=True)
class MapTask:
    """Maps parts.

    Attributes:
        work: the pickled ``RoundWork``.
        state: the packed state, or a broadcast of it.
        key: of the packed data; their files on the executors lie under it.
        columns: what the tensors are for.
        parts: rows of every part.
        layout: of columns, for parts without rows.
        cut: whether tensors are cut into pieces that are reduced apart.
    """

    work: bytes
    state: Any
    key: str
    columns: Columns
    parts: tuple[int, ...]
    layout: Mapping[str, Layout]
    cut: bool

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map the parts whose numbers come, where they are on this executor; say so where they are not."""
        spare_imports()
        for batch in batches:
            for index in batch.column(0).to_pylist():
                store = _store(self.key, index)
                yield from self._map(store, index) if store.has(index) else missing(index)

    def build(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the part whose blocks come, and map it."""
        spare_imports()
        index: int | None = None
        rows = ((part, payload) for batch in batches for part, payload in zip(*_both(batch), strict=True))
        first = next(rows, None)
        if first is None:
            return
        index = first[0].as_py()
        store = _store(self.key, index)

        def payloads() -> Iterator[bytes]:
            yield first[1].as_buffer()
            for _, payload in rows:
                yield payload.as_buffer()

        store.write(index, payloads())
        yield from self._map(store, index)

    def _map(self, store: Store, index: int) -> Iterator[pa.RecordBatch]:
        part = store.open(index, self.columns, self.parts, self.layout)
        state = self.state if isinstance(self.state, bytes) else self.state.value
        context = TaskContext.get()
        before = torch.get_num_threads()
        torch.set_num_threads(context.cpus() if context is not None else before)
        try:
            found = mapped(self.work, unpack_state(state), part)
        finally:
            torch.set_num_threads(before)
        if self.cut and found.trouble is None:
            yield from _cut(found)
            found = replace(found, tensors={name: torch.empty(0) for name in found.tensors})
        payload = cloudpickle.dumps(found)
        for piece, first in enumerate(range(0, len(payload), _PIECE)):
            yield _row(PIECES, index, _RESULT - piece, "", "", payload[first : first + _PIECE])


def _both(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    return batch.column("part"), batch.column("payload")


def missing(index: int) -> Iterator[pa.RecordBatch]:
    """What a task says whose part is not on its executor."""
    yield _row(PIECES, index, _RESULT, "missing", "", b"")


def _cut(found: Mapped) -> Iterator[pa.RecordBatch]:
    """The tensors in pieces, of which the same number is the same place in every part's."""
    piece = 0
    for name, tensor in sorted(found.tensors.items()):
        flat = tensor.contiguous().reshape(-1)
        step = max(1, _PIECE // flat.element_size())
        for first in range(0, max(1, len(flat)), step):
            payload = flat[first : first + step].view(torch.uint8).numpy().tobytes() if len(flat) else b""
            yield _row(
                PIECES, found.index, piece, f"{name} {json.dumps(list(tensor.shape))}", _NAMES[flat.dtype], payload
            )
            piece += 1


@dataclass(frozen=True)
class ReduceTask:
    """Reduces pieces that come in the order of their numbers, and of the parts within.

    Attributes:
        work: the pickled ``RoundWork``.
    """

    work: bytes

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each piece; what is not to be reduced passes."""
        spare_imports()
        reduce, tree, last = unship(self.work).reduce, None, None
        for batch in batches:
            for row in range(batch.num_rows):
                part, piece, name, dtype, payload = (column[row] for column in batch.columns)
                number = piece.as_py()
                if number < 0:
                    yield _row(PIECES, part.as_py(), number, name.as_py(), dtype.as_py(), payload.as_py())
                    continue
                key = number, name.as_py(), dtype.as_py()
                if tree is None or key != last:
                    if tree is not None and last is not None:
                        yield _reduced(tree, last)
                    tree, last = Tree(reduce), key
                tree.push({tensor_name(key[1])[0]: _tensor(payload.as_buffer(), key[2])})
        if tree is not None and last is not None:
            yield _reduced(tree, last)


def tensor_name(name: str) -> tuple[str, list[int]]:
    """The name of a tensor and its shape, as a piece has them."""
    found, _, shape = name.rpartition(" [")
    return found, json.loads(f"[{shape}")


def _reduced(tree: Tree, key: tuple[int, str, str]) -> pa.RecordBatch:
    [tensor] = tree.result().values()
    return _row(PIECES, 0, *key, tensor.contiguous().view(torch.uint8).numpy().tobytes())


def _tensor(payload: Any, dtype: str) -> Tensor:
    data = bytearray(payload)
    return torch.frombuffer(data, dtype=DTYPES[dtype]) if data else torch.empty(0, dtype=DTYPES[dtype])


def drop(batches: Iterable[pa.RecordBatch], key: str) -> Iterator[pa.RecordBatch]:
    """Delete the files of packed data on an executor."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            _store(key, index).remove()
            yield _row(PIECES, index, _RESULT, "", "", b"")


def _store(key: str, index: int) -> Store:
    return Store(Path(_local_directory(index) or tempfile.gettempdir()) / f"sparkdl-parts-{key}")


def _local_directory(index: int) -> str | None:
    """A folder on the executor's local disks, the same for a part in every process; Spark removes it in the end."""
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(folder)]
    return folders[index % len(folders)] if folders else None


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}


def _row(schema: str, *values: Any) -> pa.RecordBatch:
    fields = [field.split() for field in schema.split(", ")]
    arrays = [pa.array([value], _TYPES[kind]) for value, (_, kind) in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])
