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
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from sparkdl.io.redaction import masked, public

SECONDS = 10.0
BYTES = 1 << 20
DRIVER = "driver-"
"""Prefix of the names of the driver's files."""

logger = logging.getLogger(__name__)


def open_event_file(folder: str | os.PathLike[str], name: str) -> EventFile:
    """The event file ``name`` in a folder, a path or URI; the file must have no other writer."""
    uri = str(folder)
    path: str | None = None
    if uri.startswith("file:"):
        from sparkdl.io.files import local_path  # late: it loads pyarrow, which workers that only record do not need

        path = local_path(uri)
    elif "://" not in uri:
        path = os.path.abspath(uri)
    return _ChunkedFile(uri, name) if path is None else EventFile(path, name)


class EventFile:
    """A local event file, created with its first event; one thread may use it.

    Attributes:
        lost: accepted lines that could not be written.
    """

    lost = 0

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name
        self._warned = False
        self._file: FileIO | None = None

    def __str__(self) -> str:
        return f"{public(self._folder)}/{self._name}.jsonl"

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines; returns how many were completely written or, on a remote filesystem, accepted."""
        data = b"".join(line + b"\n" for line in lines)
        written = 0
        try:
            self._file = self._file or self._open()
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._warn(error)
            self.close()
        return data.count(b"\n", 0, written)

    def flush(self, *, idle: bool = False) -> None:
        """Write the lines that were collected long enough ago; with ``idle``, write all."""

    def close(self) -> None:
        """Write the remaining lines and close the file; a later ``append`` reopens it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        os.makedirs(self._folder, exist_ok=True)
        file = FileIO(Path(self._folder, f"{self._name}.jsonl"), "a+")  # unbuffered: a failed write is never repeated
        if file.tell() and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n":
            file.write(b"\n")  # an earlier process died inside its last line: begin a new one
        return file

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            logger.warning("%s cannot be written, so its events are dropped: %s", self, masked(str(error)))
            self._warned = True


class _ChunkedFile(EventFile):
    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, name)
        self._unique = f"{name}.{uuid.uuid4().hex[:8]}"  # without a look at the folder
        self._lines: list[bytes] = []
        self._size = self._number = 0
        self._since = 0.0

    def append(self, lines: Sequence[bytes]) -> int:
        if not self._lines:
            self._since = time.monotonic()
        self._lines += lines
        self._size += sum(map(len, lines))
        return len(lines)

    def flush(self, *, idle: bool = False) -> None:
        due = idle or self._size >= BYTES or time.monotonic() - self._since >= SECONDS
        if not self._lines or not due:
            return
        lines, self._lines, self._size = self._lines, [], 0
        try:
            from sparkdl.io.files import Folder

            name = f"{self._unique}.{self._number:05d}.jsonl"
            Folder.of(self._folder).write(name, *(line + b"\n" for line in lines))
            self._number += 1
        except Exception as error:  # a filesystem may raise anything, but only events may be lost
            self.lost += len(lines)
            self._warn(error)

    def close(self) -> None:
        self.flush(idle=True)
