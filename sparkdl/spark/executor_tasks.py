"""What runs on executors in rounds: packing a partition, mapping a part, reducing pieces, deleting files.

A task takes all of its input whatever happens: one that leaves some behind loses its Python worker, and the next round
would wait for another to import torch.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from sparkdl.cluster.tasks import Mapped, Tree, mapped
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Part
from sparkdl.data.shard_store import Store, empty_part, pack, rows_in
from sparkdl.data.spool import Spool
from sparkdl.errors import InvalidInput
from sparkdl.io.pickling import unship
from sparkdl.io.serialization import unpack_state
from sparkdl.io.threads import torch_threads
from sparkdl.spark.python_worker import spare_imports
from sparkdl.spark.tensor_chunks import RESULT, Row, Title, cut_tensors, record_batch, reduced_piece
from sparkdl.telemetry.task_recorder import Reporting

PACKED = "part int, block int, rows bigint, about string, payload binary"

Sent = bytes | Any
"""Bytes, inside of a task, or a broadcast of them."""

CHANGED = (
    "its rows have come back different from those that were packed, after an executor was lost: they are not computed "
    "the same twice (rand() without a seed, an order that is not fixed). Give idCol, or write the rows to a table and "
    "train on that."
)


@dataclass(frozen=True)
class PackTask:
    """Packs a partition into blocks, for Spark to keep, and writes them to a disk of the executor.

    Attributes:
        columns: which columns become which tensors.
        names: the columns' names, in the order in which they arrive; the part's number comes after them.
        key: of the packed data; the files lie under it.
    """

    columns: Columns
    names: tuple[str, ...]
    key: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The partition's blocks; the first one says how many rows there are, of what, or what is wrong with them."""
        remaining = (batch for batch in batches if batch.num_rows)
        first = next(remaining, None)
        if first is None:
            return
        index = int(first.columns[-1][0].as_py())  # the task's own number may be another one, as in a union
        store = store_of(self.key, index)
        try:
            spool = Spool(self.columns, directory=local_directory(index), part=index)
            self._append(spool, first)
            for batch in remaining:
                self._append(spool, batch)
            spool.check()
            layout, part = spool.layout(), self._sealed(spool, index)
        except InvalidInput as error:
            for _ in remaining:
                continue
            yield record_batch(PACKED, index, 0, 0, json.dumps({"trouble": error.message}), b"")
            return
        mark = str(fingerprint(part))
        about = json.dumps({"layout": layout, "fingerprint": mark})
        with store.writing(index, mark) as append:
            for block, payload in enumerate(pack(part)):
                append(payload)
                yield record_batch(PACKED, index, block, spool.rows, about, payload)

    def _sealed(self, spool: Spool, index: int) -> Part:
        """The partition as the only part, under its own number."""
        return replace(spool.part(0, (spool.rows,), {}), index=index)

    def _append(self, spool: Spool, batch: pa.RecordBatch) -> None:
        spool.append(pa.RecordBatch.from_arrays(batch.columns[:-1], names=list(self.names)))


@dataclass(frozen=True)
class MapTask:
    """Maps parts.

    Attributes:
        work: the pickled ``RoundWork``, or a broadcast of it.
        state: the packed state, or a broadcast of it.
        key: of the packed data; their files on the executors lie under it.
        columns: what the tensors are for.
        parts: rows of every part.
        fingerprints: of every part's rows, as they were when they were packed.
        layout: of columns, for parts without rows.
        most: bytes of all parts' tensors that the driver reduces; more are cut into pieces, which are reduced apart.
        cut: whether pieces are welcome; where they are not, a result that needs cutting is left out and named large.
        reporting: where it tells of itself.
    """

    work: Sent
    state: Sent
    key: str
    columns: Columns
    parts: tuple[int, ...]
    fingerprints: tuple[str, ...]
    layout: Mapping[str, Layout]
    most: int
    cut: bool
    reporting: Reporting = field(default_factory=Reporting)

    def run(self, index: int, rows: Iterable[Any]) -> Iterator[Row]:
        """Map a part, where it is on this executor; say so where it is not."""
        spare_imports()
        for _ in rows:
            continue
        store = store_of(self.key, index)
        if self.parts[index] and not self._here(store, index):
            yield index, RESULT, "missing", b""
        else:
            yield from self._map(store, index)

    def build(self, rows: Iterable[Any]) -> Iterator[Row]:
        """Write the part whose blocks come, unless it is here, and map it."""
        spare_imports()
        remaining = iter(rows)
        first = next(remaining, None)
        if first is None:
            return
        store = store_of(self.key, first.part)
        blocks = complete(itertools.chain([first], remaining), self.parts[first.part])
        if not self._here(store, first.part):
            with store.writing(first.part) as append:
                for row in blocks:
                    append(row.payload)
        for _ in blocks:
            continue
        yield from self._map(store, first.part)

    def build_some(self, wanted: Container[int], index: int, rows: Iterable[Any]) -> Iterator[Row]:
        """``build`` for the parts that are wanted, nothing for the others."""
        if index in wanted:
            yield from self.build(rows)
        for _ in rows:
            continue

    def _here(self, store: Store, index: int) -> bool:
        return as_packed(store, index, (self.columns, self.parts, self.layout), self.fingerprints[index])

    def _map(self, store: Store, index: int) -> Iterator[Row]:
        found = self._mapped(store, index)
        size = sum(tensor.nbytes for tensor in found.tensors.values())
        if size * len(self.parts) <= self.most:
            yield index, RESULT, "", found.packed()
        elif not self.cut:
            yield index, RESULT, "large", b""
        else:
            count = 0
            for row in cut_tensors(found):
                yield row
                count += 1
            told = replace(found, tensors={}, note=(count, size, found.note))
            yield index, RESULT, "cut", told.packed()

    def _mapped(self, store: Store, index: int) -> Mapped:
        known = self.columns, self.parts, self.layout
        part = store.open(index, *known) if self.parts[index] else empty_part(index, *known)
        if part.rows and store.fingerprint(part) != self.fingerprints[index]:
            return Mapped.of_error(index, InvalidInput(CHANGED))
        context = TaskContext.get()
        with torch_threads(None if context is None else context.cpus()):
            state, attempt = unpack_state(received(self.state)), 0 if context is None else context.attemptNumber()
            return mapped(received(self.work), state, part, reporting=self.reporting, attempt=attempt)


@dataclass(frozen=True)
class ReduceTask:
    """Reduces pieces that come in the order of their numbers, and of the parts within.

    Attributes:
        work: the pickled ``RoundWork``, or a broadcast of it.
    """

    work: Sent

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each piece; in place of its part it has the number of parts that there were of it.

        They come when all input is in, so that a task writes nothing while its JVM still does: it has a few pieces.
        """
        return iter([*self._reduced(batches)])

    def _reduced(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_imports()
        reduce, tree, parts, last = unship(received(self.work)).reduce, None, 0, None
        for batch in batches:
            for row in range(batch.num_rows):
                _, piece, name, payload = (column[row] for column in batch.columns)
                key = piece.as_py(), Title.of_json(name.as_py())
                if tree is None or key != last:
                    if tree is not None and last is not None:
                        yield reduced_piece(tree, parts, *last)
                    tree, parts, last = Tree(reduce), 0, key
                tree.push({key[1].name: key[1].values(payload.as_buffer())})
                parts += 1
        if tree is not None and last is not None:
            yield reduced_piece(tree, parts, *last)


def received(sent: Sent) -> bytes:
    """The bytes."""
    found: bytes = sent if isinstance(sent, bytes) else sent.value
    return found


def complete(blocks: Iterable[Any], rows: int) -> Iterator[Any]:
    """Packed blocks, which have so many rows.

    A task whose input fails, as where an executor went that had it, has failed; but pyspark's worker takes that for the
    end of the input, and would map what came until then, or leave that on the disk as if it were all.

    Raises:
        EOFError: they end before.
    """
    seen = 0
    for row in blocks:
        seen += rows_in(row.payload)
        yield row
    if seen != rows:
        raise EOFError(f"{seen} of {rows} rows came before the input ended")


def as_packed(
    store: Store, index: int, known: tuple[Columns, tuple[int, ...], Mapping[str, Layout]], fingerprint: str
) -> bool:
    """Whether a part is in the store with the rows that it was packed with.

    A task that packed it, and whose input failed, may have left the rows that came until then: these are deleted.

    Args:
        store: of this executor.
        index: of the part, which has rows.
        known: what opens it beside.
        fingerprint: of its rows.
    """
    if not store.has(index):
        return False
    if store.fingerprint(store.open(index, *known)) == fingerprint:
        return True
    store.discard(index)
    return False


def heads(rows: Iterable[Any]) -> Iterator[tuple[int, int, str]]:
    """Part, rows and description of a packed partition that has rows."""
    for row in rows:
        if row.block == 0:
            yield row.part, row.rows, row.about


def drop(key: str, rows: Iterable[Any]) -> None:
    """Delete the files of packed data on an executor."""
    for _ in rows:
        continue
    for folder in _local_directories():
        Store(Path(folder) / f"sparkdl-parts-{key}").remove()


def store_of(key: str, index: int) -> Store:
    """The store of packed data in which a part lies on this executor."""
    return Store(Path(local_directory(index)) / f"sparkdl-parts-{key}")


def local_directory(index: int) -> str:
    """A folder on the executor's local disks, the same for a part in every process; Spark removes it in the end."""
    folders = _local_directories()
    return folders[index % len(folders)]


def _local_directories() -> list[str]:
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(folder)]
    return folders or [tempfile.gettempdir()]
