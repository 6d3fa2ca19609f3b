"""Events in files, one JSON object a line, on any filesystem.

On a local disk, and on a shared one that is mounted, lines are appended to ``<name>.jsonl`` as they come, and are the
system's at once: they outlive this process. HDFS and object stores have no cheap append: there lines are collected for
up to ``SECONDS`` seconds or ``BYTES`` bytes and written as files of their own, ``<name>.00000.jsonl`` and so on; a
process that is killed takes with it what it has collected.

A disk that is full costs events and nothing else: what cannot be written is counted, and said once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import warnings
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl.channel import Event
from sparkdl.errors import InvalidInput

if TYPE_CHECKING:
    from sparkdl.files import Folder

__all__ = ["Journal", "read_events", "shown"]

SECONDS = 10.0
BYTES = 1 << 20

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
        self._where = f"{shown(str(folder))}/{name}"
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
            logger.warning("events cannot be kept in %s and are dropped: %s", self, trouble)
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
        self._folder, self._name = folder, name
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
            folder = _open(self._folder)
            while folder.exists(self._piece()):  # of an earlier process of this name
                self._number += 1
            folder.write(self._piece(), *(line + b"\n" for line in lines))
        except (OSError, InvalidInput) as error:
            return len(lines), error
        self._number += 1
        return 0, None

    def close(self) -> None:
        """Nothing is open."""

    def _piece(self) -> str:
        return f"{self._name}.{self._number:05d}.jsonl"


def shown(uri: str) -> str:
    """What may be shown of a path or URI: credentials are before the @, and options behind the ?."""
    return re.sub(r"//[^/@]*@", "//", uri.partition("?")[0]) if "://" in uri else uri


def read_events(folder: str | os.PathLike[str]) -> list[Event]:
    """Read the events of a run, sorted by time, each once.

    A line that is no event, such as the last one of a process that was killed, is skipped with a ``RuntimeWarning``.

    Args:
        folder: a run's ``events``, a path or URI; where there is none, or it is empty, there are no events.
    """
    place = _open(str(folder))
    found: dict[str, Event] = {}
    for name in sorted(place.sizes("")):
        if not name.endswith(".jsonl"):
            continue
        for number, line in enumerate(place.read(name).splitlines(), start=1):
            try:
                event = Event.from_json(line)
            except InvalidInput as error:
                warnings.warn(f"{place.at(name)} line {number} is skipped: {error}", RuntimeWarning, stacklevel=2)
                continue
            # Where the receipt was lost with the connection, the driver has written it, and the member as well.
            key = json.dumps([event.kind, event.rank, event.attempt, event.time, event.payload], sort_keys=True)
            if key not in found or event.received is not None:
                found[key] = event
    return sorted(found.values(), key=lambda event: event.time)


# Imported late, for it loads pyarrow, which whoever only records does not need.
def _open(uri: str) -> Folder:
    from sparkdl.files import Folder

    return Folder.of(uri)


def _local_path(uri: str) -> str | None:
    if "://" not in uri and not uri.startswith("file:"):
        return os.path.abspath(uri)
    from sparkdl.files import local_path

    return local_path(uri)
