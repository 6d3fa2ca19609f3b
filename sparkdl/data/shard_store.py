"""A part as blocks of bytes, which Spark can keep, and as files that every task of a host can map.

A block is some rows of all columns, in row-id order:

    8 bytes    length of the header, little-endian
    header     JSON: rows, and of each column its name, dtype, shape of a row, and values where rows are ragged
    bytes      of one column after the other; of a ragged one its values, then its bounds

A store is a folder with a folder for each part, which has a file for each column, written from the blocks in their
order. It comes into its place complete, by a rename, so two tasks that write the same part do not disturb each other,
and a task that finds one knows that it is whole.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkdl.data.batch import DTYPES, Input, Ragged
from sparkdl.data.column_file import Layout
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Part
from sparkdl.data.spool import Spool

BYTES = 4 << 20
"""Bytes of a block, about: more makes Spark's rows clumsy, fewer costs time for each."""

_ABOUT = "part.json"
_MARK = "fingerprint"
_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


def pack(part: Part, *, size: int = BYTES) -> Iterator[bytes]:
    """A part's rows as blocks of about ``size`` bytes; at least one, which has no rows where the part has none."""
    row = sum(tensor.nbytes for tensor in part.tensors.values()) // max(1, part.rows)
    step = max(1, size // max(1, row))
    for first in range(0, max(1, part.rows), step):
        rows = torch.arange(first, min(first + step, part.rows))
        chosen = rows if part.order is None else part.order[rows]
        yield _block(len(rows), {name: tensor.index_select(0, chosen) for name, tensor in part.tensors.items()})


def _block(rows: int, tensors: Mapping[str, Input]) -> bytes:
    columns, pieces = [], []
    for name, tensor in tensors.items():
        values = tensor.values if isinstance(tensor, Ragged) else tensor
        about: dict[str, Any] = {"name": name, "dtype": _DTYPES[values.dtype], "shape": list(values.shape[1:])}
        pieces.append(_bytes(values))
        if isinstance(tensor, Ragged):
            about |= {"values": len(values), "padding": tensor.padding}
            pieces.append(_bytes(tensor.bounds))
        columns.append(about)
    header = json.dumps({"rows": rows, "columns": columns}).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([struct.pack("<Q", len(header)), header, *pieces])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def rows_in(block: bytes | memoryview) -> int:
    """How many rows a block has."""
    return int(_header(block)[0]["rows"])


def _header(block: bytes | memoryview) -> tuple[dict[str, Any], int]:
    (length,) = struct.unpack("<Q", block[:8])
    return json.loads(bytes(block[8 : 8 + length])), 8 + length


class Store:
    """Parts on this host's disk.

    Args:
        folder: where; it is made with the first part.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def has(self, index: int) -> bool:
        """Whether a part is here."""
        return (self._at(index) / _ABOUT).exists()

    def write(self, index: int, blocks: Iterable[bytes]) -> None:
        """Write a part's blocks, in their order; if another task was faster, its files stay."""
        with self.writing(index) as append:
            for block in blocks:
                append(block)

    @contextmanager
    def writing(self, index: int, mark: str | None = None) -> Iterator[Callable[[bytes], None]]:
        """A function that takes a part's blocks one by one; at the end of the block the part comes into its place.

        Args:
            index: which part.
            mark: its fingerprint, where that is known; see ``fingerprint``.
        """
        made = self.folder / f"{uuid.uuid4().hex}.tmp"
        made.mkdir(parents=True)
        about: dict[str, Any] = {"rows": 0, "columns": []}
        try:
            yield partial(_append_block, made, about)
            (made / _ABOUT).write_text(json.dumps(about))
            if mark is not None:
                (made / _MARK).write_text(mark)
            self._place(made, index)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @contextmanager
    def alone(self, index: int) -> Iterator[None]:
        """A block that one process of this host at a time is in, for a part; a lock goes with its process.

        On a filesystem without locks several are in it: that costs time, and does no harm.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"part-{index:05d}.lock").open("w") as lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _place(self, made: Path, index: int) -> None:
        try:
            made.rename(self._at(index))
        except OSError:
            if not self.has(index):
                raise

    def open(self, index: int, columns: Columns, parts: tuple[int, ...], layout: Mapping[str, Layout]) -> Part:
        """Map a part.

        Args:
            index: which.
            columns: what its tensors are for.
            parts: rows of every part, by index.
            layout: what an empty part's columns are like: as those of the others.
        """
        folder = self._at(index)
        about = json.loads((folder / _ABOUT).read_text())
        if not about["rows"]:
            return empty_part(index, columns, parts, layout)
        tensors = {column["name"]: _map(folder, number, column, about["rows"]) for number, column in _numbered(about)}
        return Part(index, len(parts), about["rows"], parts, columns, tensors)

    def fingerprint(self, part: Part) -> str:
        """The fingerprint of a part that was opened here; its rows are read for it once."""
        place = self._at(part.index) / _MARK
        if not place.exists():
            written = place.with_suffix(f".{uuid.uuid4().hex}")
            written.write_text(str(fingerprint(part)))
            written.rename(place)
        return place.read_text()

    def discard(self, index: int) -> None:
        """Delete a part; those who have it open keep what they have."""
        shutil.rmtree(self._at(index), ignore_errors=True)

    def remove(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _at(self, index: int) -> Path:
        return self.folder / f"part-{index:05d}"


def empty_part(index: int, columns: Columns, parts: tuple[int, ...], layout: Mapping[str, Layout]) -> Part:
    """A part without rows, which needs no files; see ``Store.open``."""
    return Spool(columns).part(index, parts, dict(layout))


def _numbered(about: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(about["columns"])


def _append_block(folder: Path, about: dict[str, Any], block: bytes) -> None:
    view = memoryview(block)
    header, first = _header(view)
    if not about["columns"]:
        about["columns"] = [{**column, "values": 0} if "values" in column else column for column in header["columns"]]
    for number, column in _numbered(header):
        whole = about["columns"][number]
        first = _append(folder / f"{number}.values", view, first, _size(column, header["rows"]))
        if "values" in column:
            first = _bounds(folder / f"{number}.bounds", view, first, header["rows"], whole["values"])
            whole["values"] += column["values"]
    about["rows"] += header["rows"]


def _size(column: Mapping[str, Any], rows: int) -> int:
    values: int = column.get("values", rows)
    return values * int(math.prod(column["shape"])) * DTYPES[column["dtype"]].itemsize


def _append(path: Path, view: memoryview, first: int, size: int) -> int:
    with path.open("ab") as file:
        file.write(view[first : first + size])
    return first + size


def _bounds(path: Path, view: memoryview, first: int, rows: int, before: int) -> int:
    size = 8 * (rows + 1)
    bounds = np.frombuffer(view[first : first + size], np.int64) + before
    with path.open("ab") as file:
        file.write((bounds if not before and not path.stat().st_size else bounds[1:]).tobytes())
    return first + size


def _map(folder: Path, number: int, column: Mapping[str, Any], rows: int) -> Input:
    values = column.get("values", rows)
    tensor = _tensor(folder / f"{number}.values", DTYPES[column["dtype"]], (values, *column["shape"]))
    if "values" not in column:
        return tensor
    return Ragged(tensor, _tensor(folder / f"{number}.bounds", torch.int64, (rows + 1,)), column["padding"])


def _tensor(path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    with path.open("rb") as file:
        # A private mapping: a model may write to a batch's memory without changing what the next round reads.
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    return torch.frombuffer(mapped, dtype=dtype).view(shape)
