"""Events in files, one JSON object a line, on any filesystem.

On a local disk, and on a shared one that is mounted, lines are appended to ``<name>.jsonl`` as they come, and are the
system's at once: they outlive this process. HDFS and object stores have no cheap append: there lines are collected for
up to ``SECONDS`` seconds or ``BYTES`` bytes and written as files of their own, ``<name>.<random>.00000.jsonl`` ...; a
process that is killed takes with it what it has collected.

A disk that is full costs events and nothing else: what cannot be written is counted, and said once.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl.io.redaction import public

if TYPE_CHECKING:
    from sparkdl.io.files import Folder

__all__ = ["DRIVER", "Journal"]

SECONDS = 10.0
BYTES = 1 << 20
DRIVER = "driver-"
"""What the names of the driver's files begin with."""

logger = logging.getLogger(__name__)


class Journal:
    """A place for events, made when the first is kept. It belongs to one thread.

    Args:
        folder: a local path or a URI.
        name: of the file, without ``.jsonl``; nobody else may write to it at the time.

    Attributes:
        lost: lines that were taken, and could not be written after all.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self.lost = 0
        self._where = f"{public(str(folder))}/{name}"
        self._warned = False
        local = _local_path(str(folder))
        self._kept: _Appended | _Pieces = _Pieces(str(folder), name) if local is None else _Appended(local, name)

    def __str__(self) -> str:
        return f"{self._where}.jsonl"

    def append(self, lines: Sequence[bytes]) -> int:
        """Append lines and return how many of them are kept, or, elsewhere than on a local disk, taken."""
        taken, trouble = self._kept.append(lines)
        self._tell(trouble)
        return taken

    def flush(self, *, idle: bool = False) -> None:
        """Write what was collected long enough ago, or, where nothing more comes, all of it."""
        lost, trouble = self._kept.flush(idle=idle)
        self.lost += lost
        self._tell(trouble)

    def close(self) -> None:
        """Write what is left, and close the file; it opens again if there is more to keep."""
        self.flush(idle=True)
        self._kept.close()

    def _tell(self, trouble: Exception | None) -> None:
        if trouble is not None and not self._warned:
            # Of an error of a library nothing but its kind: it may quote the URI, and with it credentials.
            told = trouble if isinstance(trouble, OSError) and "://" not in str(trouble) else type(trouble).__name__
            logger.warning("events cannot be kept in %s and are dropped: %s", self, told)
            self._warned = True


class _Appended:
    """Lines at the end of a local file."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder, f"{name}.jsonl")
        self._file: FileIO | None = None

    def append(self, lines: Sequence[bytes]) -> tuple[int, Exception | None]:
        """How many of the lines are wholly in the file, and why not all."""
        data = b"".join(line + b"\n" for line in lines)
        written, trouble = 0, None
        try:
            if self._file is None:
                self._file = self._open()
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            trouble = error
            self.close()
        return data.count(b"\n", 0, written), trouble

    def flush(self, *, idle: bool) -> tuple[int, Exception | None]:
        """Nothing is left."""
        return 0, None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(self._path, "a+")  # unbuffered: what was not written is never written later
        if file.tell() and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n":
            file.write(b"\n")  # an earlier process was cut short: the next line must not grow onto its last
        return file


class _Pieces:
    """Lines in files of some seconds each."""

    def __init__(self, folder: str, name: str) -> None:
        # No other process has files of these names, and none has to be looked for.
        self._folder, self._name = folder, f"{name}.{uuid.uuid4().hex[:8]}"
        self._lines: list[bytes] = []
        self._size, self._number, self._since = 0, 0, 0.0

    def append(self, lines: Sequence[bytes]) -> tuple[int, Exception | None]:
        """All lines are taken."""
        if not self._lines:
            self._since = time.monotonic()
        self._lines += lines
        self._size += sum(map(len, lines))
        return len(lines), None

    def flush(self, *, idle: bool) -> tuple[int, Exception | None]:
        """Write a file if it is time; how many lines were lost, and why."""
        old = time.monotonic() - self._since >= SECONDS
        if not self._lines or not (idle or old or self._size >= BYTES):
            return 0, None
        lines, self._lines, self._size = self._lines, [], 0
        try:
            open_folder(self._folder).write(f"{self._name}.{self._number:05d}.jsonl", *(line + b"\n" for line in lines))
        except Exception as error:  # whatever a filesystem raises, it must cost events alone
            return len(lines), error
        self._number += 1
        return 0, None

    def close(self) -> None:
        """Nothing is open."""


# Imported late, for it loads pyarrow, which whoever only records does not need.
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
