"""Event files, one JSON object a line, on any filesystem.

On a local disk or a mounted shared one, each line is appended to ``<name>.jsonl`` at once and survives this process.
HDFS and object stores cannot append cheaply. There lines are collected for up to ``SECONDS`` seconds or ``BYTES`` bytes
and written as separate files, ``<name>.<random>.00000.jsonl`` ...; a killed process loses its collected lines.

A full disk costs only events: the file counts those that it cannot write, and warns once.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl.io.redaction import public

if TYPE_CHECKING:
    from sparkdl.io.files import Folder

__all__ = ["DRIVER", "EventFile"]

SECONDS = 10.0
BYTES = 1 << 20
DRIVER = "driver-"
"""Prefix of the names of the driver's files."""

logger = logging.getLogger(__name__)


class EventFile:
    """An event file, created with the first event; one thread may use it.

    Args:
        folder: a local path or a URI.
        name: file name without ``.jsonl``; it must have no other writer.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self._where = f"{public(str(folder))}/{name}"
        self._warned = False
        local = _local_path(str(folder))
        self._kept: _Appended | _Chunks = (
            _Chunks(str(folder), name, self._report) if local is None else _Appended(local, name, self._report)
        )

    def __str__(self) -> str:
        return f"{self._where}.jsonl"

    @property
    def lost(self) -> int:
        """Accepted lines that could not be written."""
        return self._kept.lost

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines; returns how many were written or, on a remote filesystem, accepted."""
        return self._kept.append(lines)

    def flush(self, *, idle: bool = False) -> None:
        """Write the lines that were collected long enough ago; with ``idle``, write all."""
        self._kept.flush(idle=idle)

    def close(self) -> None:
        """Write the remaining lines and close the file; a later ``append`` reopens it."""
        self.flush(idle=True)
        self._kept.close()

    def _report(self, error: Exception) -> None:
        if not self._warned:
            # Log only the type of a library's error: its text may quote the URI with credentials.
            cause = error if isinstance(error, OSError) and "://" not in str(error) else type(error).__name__
            logger.warning("%s cannot be written, so its events are dropped: %s", self, cause)
            self._warned = True


class _Appended:
    """Lines at the end of a local file."""

    lost = 0

    def __init__(self, folder: str, name: str, report: Callable[[Exception], None]) -> None:
        self._path, self._report = Path(folder, f"{name}.jsonl"), report
        self._file: FileIO | None = None

    def append(self, lines: Sequence[bytes]) -> int:
        """Returns how many lines are completely in the file."""
        data = b"".join(line + b"\n" for line in lines)
        written = 0
        try:
            self._file = self._file or self._open()
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._report(error)
            self.close()
        return data.count(b"\n", 0, written)

    def flush(self, *, idle: bool) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(self._path, "a+")  # unbuffered: a failed write is never written later
        if file.tell() and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n":
            file.write(b"\n")  # an earlier process died inside its last line: begin a new one
        return file


class _Chunks:
    """Lines in one file per few seconds."""

    def __init__(self, folder: str, name: str, report: Callable[[Exception], None]) -> None:
        # The random part makes names unique without a look at the folder.
        self._folder, self._name, self._report = folder, f"{name}.{uuid.uuid4().hex[:8]}", report
        self._lines: list[bytes] = []
        self.lost = self._size = self._number = 0
        self._since = 0.0

    def append(self, lines: Sequence[bytes]) -> int:
        """All lines are accepted."""
        if not self._lines:
            self._since = time.monotonic()
        self._lines += lines
        self._size += sum(map(len, lines))
        return len(lines)

    def flush(self, *, idle: bool) -> None:
        due = idle or self._size >= BYTES or time.monotonic() - self._since >= SECONDS
        if not self._lines or not due:
            return
        lines, self._lines, self._size = self._lines, [], 0
        try:
            open_folder(self._folder).write(f"{self._name}.{self._number:05d}.jsonl", *(line + b"\n" for line in lines))
            self._number += 1
        except Exception as error:  # a filesystem may raise anything, but only events may be lost
            self.lost += len(lines)
            self._report(error)

    def close(self) -> None:
        """Nothing is open."""


# Imported late: it loads pyarrow, which workers that only record do not need.
def open_folder(uri: str) -> Folder:
    """The folder at a path or URI."""
    from sparkdl.io.files import Folder

    return Folder.of(uri)


def _local_path(uri: str) -> str | None:
    if "://" not in uri and not uri.startswith("file:"):
        return os.path.abspath(uri)
    if not uri.startswith("file:"):
        return None
    from sparkdl.io.files import local_path

    return local_path(uri)
