"""Scalars in TensorBoard's event files.

Each file begins with the step from which it voids all earlier files of its folder, ``SummaryWriter(purge_step=)``. A
resumed run writes its earlier rows again, so TensorBoard shows each step once, and no file is read back.

TensorBoard reads the files of a folder in the order of their names, which begin with the second of their creation. So
a new file waits until its name is the last. If two fits write to one folder at a time, each voids the other's scalars.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkdl.io import files
from sparkdl.io.optional_imports import required

EXTRA = "tensorboard"
MODULE = "torch.utils.tensorboard"

_FILES = "*.tfevents.*"
_SHARE = 10  # copies take at most this fraction of the time: one tenth
_TURN = 2.0  # seconds; a new file does not wait longer for its name to be the last
_BEYOND = 1 << 62  # larger than any step: a file that begins with it voids nothing


class ScalarCharts:
    """Scalars by step, and texts, in a mirror's folder or one inside it; ``steps`` has the valid steps in order."""

    def __init__(self, mirror: EventFileMirror, inner: str = "") -> None:
        self.steps: list[int] = []
        self._mirror, self._inner = mirror, inner
        self._writer: Any = None
        self._texts: dict[str, str] = {}

    def put(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step; this voids earlier scalars of this step and of later ones."""
        if self._writer is None or step <= max(self.steps, default=-1):
            self.steps = [earlier for earlier in self.steps if earlier < step]
            self._begin(step)
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)
        self.steps.append(step)

    def text(self, tag: str, text: str) -> None:
        """Write a text, at once or with the first scalars, whose step it takes."""
        self._texts[tag] = text
        if self._writer is not None:
            self._writer.add_text(tag, text, self.steps[-1] if self.steps else 0)

    def flush(self) -> None:
        """Flush the file."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the file, after the texts that waited for scalars."""
        if self._texts and self._writer is None:
            self._begin(_BEYOND)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin(self, void: int) -> None:
        if self._writer is not None:
            self._writer.close()
        folder = self._mirror.turn(self._inner)
        self._writer = required(MODULE, EXTRA).SummaryWriter(folder, purge_step=void, flush_secs=10)
        for tag, text in self._texts.items():
            self._writer.add_text(tag, text, 0 if void == _BEYOND else void)


class EventFileMirror:
    """A folder at any URI, and folders in it: files are written on this host, and copied if the URI is elsewhere."""

    def __init__(self, uri: str) -> None:
        self._folder, path = files.Folder.of(uri), files.local_path(uri)
        self._temporary = tempfile.TemporaryDirectory(prefix="sparkdl-") if path is None else None
        self._path = self._temporary.name if self._temporary is not None else str(path)
        self._sizes, self._copied, self._took = dict[str, int](), -math.inf, 0.0

    def turn(self, inner: str) -> str:
        """Wait until a new file's name is the last, unless that takes over 2 s; return the local folder."""
        path = os.path.join(self._path, inner)
        names = {*(file.name for file in Path(path).glob(_FILES)), *self._folder.sizes(inner)}
        seconds = [name.partition(".tfevents.")[2].partition(".")[0] for name in names]
        ahead = max((int(second) for second in seconds if second.isdigit()), default=0) + 1 - time.time()
        if 0 < ahead <= _TURN:
            time.sleep(ahead)
        return path

    def copy(self, every: float = 0.0) -> None:
        """Copy new files, and, every so many seconds and in a tenth of the time at most, changed ones."""
        if self._temporary is not None:
            self._copy(changed=time.monotonic() - self._copied >= max(every, _SHARE * self._took))

    def close(self) -> None:
        """Copy the last changes and delete the folder on this host."""
        if self._temporary is not None:
            self._copy(changed=True)
            self._temporary.cleanup()

    def _copy(self, *, changed: bool) -> None:
        start = time.monotonic()
        for file in sorted(Path(self._path).rglob(_FILES)):
            name = str(file.relative_to(self._path))
            if name not in self._sizes or (changed and file.stat().st_size != self._sizes[name]):
                content = file.read_bytes()
                self._folder.write(name, content)
                self._sizes[name] = len(content)
        if changed:
            self._copied = time.monotonic()
            self._took = self._copied - start
