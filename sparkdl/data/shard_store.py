"""A shard as blocks of bytes, which Spark can keep, and as files, which every task of a host can map.

A block holds some rows of all columns, in row-id order:

    8 bytes    length of the header, little-endian
    header     JSON: rows, and for each column its name, dtype, shape of a row, and values if rows are ragged
    bytes      the columns in order; a ragged column gives its values, then its bounds

A store has one folder per shard with one file per column, written from blocks in order. A rename publishes the complete
shard, so tasks that write the same shard do not disturb each other.
"""

from __future__ import annotations

import fcntl
import json
import math
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
from sparkdl.data.column_file import Layout, mapped
from sparkdl.data.columns import Columns
from sparkdl.data.fingerprint import fingerprint
from sparkdl.data.shard import Shard
from sparkdl.data.spool import Spool

BYTES = 4 << 20
"""Approximate bytes of a block: larger ones make Spark's rows unwieldy, smaller ones add overhead."""

_ABOUT = "shard.json"
_MARK = "fingerprint"
_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


def pack(shard: Shard, *, size: int = BYTES) -> Iterator[bytes]:
    """Pack a shard's rows into blocks of about ``size`` bytes; an empty shard gives one block without rows."""
    row = sum(tensor.nbytes for tensor in shard.tensors.values()) // max(1, shard.rows)
    step = max(1, size // max(1, row))
    for first in range(0, max(1, shard.rows), step):
        rows = torch.arange(first, min(first + step, shard.rows))
        chosen = rows if shard.order is None else shard.order[rows]
        yield _block(len(rows), {name: tensor.index_select(0, chosen) for name, tensor in shard.tensors.items()})


def _block(rows: int, tensors: Mapping[str, Input]) -> bytes:
    columns, pieces = [], []
    for name, tensor in tensors.items():
        values = tensor.values if isinstance(tensor, Ragged) else tensor
        about: dict[str, Any] = {"name": name, "dtype": _DTYPES[values.dtype], "shape": list(values.shape[1:])}
        pieces.append(bytes_of(values))
        if isinstance(tensor, Ragged):
            about |= {"values": len(values), "padding": tensor.padding}
            pieces.append(bytes_of(tensor.bounds))
        columns.append(about)
    header = json.dumps({"rows": rows, "columns": columns}).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([struct.pack("<Q", len(header)), header, *pieces])


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values, in row-major order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _header(block: bytes | memoryview) -> tuple[dict[str, Any], int]:
    (length,) = struct.unpack("<Q", block[:8])
    return json.loads(bytes(block[8 : 8 + length])), 8 + length


def rows_in(block: bytes | memoryview) -> int:
    """Number of rows of a block."""
    return int(_header(block)[0]["rows"])


class ShardStore:
    """Shards on this host's disk, in a folder that is created with the first shard."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def has(self, index: int) -> bool:
        """Whether the store has a shard."""
        return (self._at(index) / _ABOUT).exists()

    def write(self, index: int, blocks: Iterable[bytes]) -> None:
        """Write a shard's blocks in order; if another task was faster, its files stay."""
        with self.writing(index) as append:
            for block in blocks:
                append(block)

    @contextmanager
    def writing(self, index: int, mark: str | None = None) -> Iterator[Callable[[bytes], None]]:
        """Yield a function that appends blocks, then publish the shard; ``mark`` is its fingerprint, if known."""
        staged = self.folder / f"{uuid.uuid4().hex}.tmp"
        staged.mkdir(parents=True)
        about: dict[str, Any] = {"rows": 0, "columns": []}
        try:
            yield partial(_append_block, staged, about)
            (staged / _ABOUT).write_text(json.dumps(about))
            if mark is not None:
                (staged / _MARK).write_text(mark)
            try:
                staged.rename(self._at(index))
            except OSError:
                if not self.has(index):  # another task was not faster
                    raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    @contextmanager
    def exclusive(self, index: int) -> Iterator[None]:
        """Context that one process of this host enters at a time; without file locks several may, which is harmless."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"shard-{index:05d}.lock").open("w") as lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def open(self, index: int, columns: Columns, shard_rows: tuple[int, ...], layout: Mapping[str, Layout]) -> Shard:
        """Map a shard; ``shard_rows``: rows of every shard; ``layout``: dtypes and shapes of an empty one."""
        folder = self._at(index)
        about = json.loads((folder / _ABOUT).read_text())
        if not about["rows"]:
            return empty_shard(index, columns, shard_rows, layout)
        rows, columns_of = about["rows"], enumerate(about["columns"])
        tensors = {column["name"]: _map(folder / str(number), column, rows) for number, column in columns_of}
        return Shard(index, len(shard_rows), rows, shard_rows, columns, tensors)

    def fingerprint(self, shard: Shard) -> str:
        """Fingerprint of a shard that this store opened; its rows are read once for it."""
        place = self._at(shard.index) / _MARK
        if not place.exists():
            written = place.with_suffix(f".{uuid.uuid4().hex}")
            written.write_text(str(fingerprint(shard)))
            written.rename(place)
        return place.read_text()

    def discard(self, index: int) -> None:
        """Delete a shard; tensors that are already mapped stay valid."""
        shutil.rmtree(self._at(index), ignore_errors=True)

    def remove(self) -> None:
        """Delete all shards."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _at(self, index: int) -> Path:
        return self.folder / f"shard-{index:05d}"


def empty_shard(index: int, columns: Columns, shard_rows: tuple[int, ...], layout: Mapping[str, Layout]) -> Shard:
    """A shard without rows or files; takes what ``ShardStore.open`` takes."""
    return Spool(columns).shard(index, shard_rows, dict(layout))


def _append_block(folder: Path, about: dict[str, Any], block: bytes) -> None:
    header, first = _header(block)
    rows = header["rows"]
    if not about["columns"]:
        about["columns"] = [{**column, "values": 0} if "values" in column else column for column in header["columns"]]
    for number, column in enumerate(header["columns"]):
        values = column.get("values", rows)
        size = values * math.prod(column["shape"]) * DTYPES[column["dtype"]].itemsize
        with (folder / f"{number}.values").open("ab") as file:
            file.write(memoryview(block)[first : first + size])
        first += size
        if "values" in column:
            stored = about["columns"][number]
            bounds = np.frombuffer(block, np.int64, rows + 1, first) + stored["values"]
            with (folder / f"{number}.bounds").open("ab") as file:
                file.write(bounds[1 if file.tell() else 0 :].tobytes())
            first += bounds.nbytes
            stored["values"] += values
    about["rows"] += rows


def _map(path: Path, column: Mapping[str, Any], rows: int) -> Input:
    with path.with_suffix(".values").open("rb") as file:
        values = mapped(file, DTYPES[column["dtype"]], (column.get("values", rows), *column["shape"]))
    if "values" not in column:
        return values
    with path.with_suffix(".bounds").open("rb") as file:
        return Ragged(values, mapped(file, torch.int64, (rows + 1,)), column["padding"])
