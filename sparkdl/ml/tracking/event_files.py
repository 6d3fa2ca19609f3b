"""Curves in TensorBoard's event files, which go on from where earlier files of the same folder have ended.

TensorBoard reads the files of a folder in the order of their names, which begin with the second that they were made
in, and shows what it finds in that order. So a curve is written with steps that grow. Where a run takes a step again
that is there already, with other numbers, the file says that all from this step on is void, and the curve goes on from
there: TensorBoard forgets what it has read of it, whichever of its two readers is in use.

A folder that is not on this host is written in a temporary one and copied, file by file. That holds while one fit at a
time writes into a folder; of two at a time each declares void what the other one has written.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.io import files
from sparkdl.ml.tracking.optional_imports import required

EXTRA = "tensorboard"
MODULE = "torch.utils.tensorboard"

_MARK = ".tfevents."
_SHARE = 10  # of the time at most, one part in so many goes into copies
_TURN = 2.0  # seconds at most that a new file waits to be the last by its name


class Curves:
    """Scalars by step and texts in one folder of this host.

    Args:
        folder: where event files are, and will be; it need not exist.

    Attributes:
        last: the last step that is there; -1 without any.
    """

    def __init__(self, folder: str) -> None:
        self.last = -1
        self._folder, self._writer = folder, None
        self._texts: dict[str, str] = {}
        self._known: dict[int, dict[str, float]] = {}
        if _event_files(folder):
            self._read()

    def __contains__(self, step: int) -> bool:
        """Whether there are scalars of this step."""
        return step in self._known

    def put(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step, unless these very ones are there; what was there from this step on is void."""
        if step in self._known and _same(self._known[step], scalars):
            return
        if step <= self.last:
            self._rewind(step)
        for tag, value in scalars.items():
            self._open().add_scalar(tag, value, step)
        self._known[step], self.last = dict(scalars), step

    def go_on(self, step: int, scalars: Mapping[str, float]) -> None:
        """As ``put``, but a step that this object has come past is taken again by another attempt: it is left out."""
        if self._writer is None or step > self.last:
            self.put(step, scalars)

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text, unless it is the last one of its tag."""
        if self._texts.get(tag) != text:
            self._open().add_text(tag, text, step)
            self._texts[tag] = text

    def flush(self) -> None:
        """Have in the file what was written."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """End the file; a later word begins another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, void: int | None = None) -> Any:
        if self._writer is None:
            _wait_turn(self._folder)
            # Each file says from which step on all is void, also where nothing is: one of TensorBoard's readers takes
            # the first such word in a folder for the start of the run.
            void = max(self.last + 1, 1) if void is None else void
            self._writer = required(MODULE, EXTRA).SummaryWriter(self._folder, purge_step=void, flush_secs=10)
        return self._writer

    def _rewind(self, step: int) -> None:
        self.close()
        self._known = {each: scalars for each, scalars in self._known.items() if each < step}
        self.last = max(self._known, default=-1)
        self._open(step)
        if not step:  # where the texts are
            texts, self._texts = self._texts, {}
            for tag, text in texts.items():
                self.text(tag, text)

    def _read(self) -> None:
        accumulator = required("tensorboard.backend.event_processing.event_accumulator", EXTRA)
        found = accumulator.EventAccumulator(self._folder, size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = found.Tags()
        for tag in tags["scalars"]:
            for event in found.Scalars(tag):
                self._known.setdefault(event.step, {})[tag] = event.value
        self.last = max(self._known, default=-1)
        for tag in tags["tensors"]:
            strings = found.Tensors(tag)[-1].tensor_proto.string_val
            if tag.endswith("/text_summary") and strings:
                self._texts[tag.removesuffix("/text_summary")] = strings[0].decode()


class Mirror:
    """A folder anywhere, as one on this host.

    Args:
        uri: of the folder, a path or URI.
        inner: the names of the folders in it that have files as well.

    Attributes:
        path: on this host.
    """

    def __init__(self, uri: str, inner: tuple[str, ...]) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._target: files.Folder | None = None
        local = files.local_path(uri)
        if local is None:
            self._temporary, self._target = tempfile.TemporaryDirectory(prefix="sparkdl-"), files.Folder.of(uri)
            local = self._temporary.name
        self.path = local
        self._inner, self._sizes = ("", *inner), dict[str, int]()
        self._copied, self._took = -math.inf, 0.0
        if self._target is not None:
            self._fetch(self._target)

    def copy(self, every: float = 0.0) -> None:
        """Copy what has changed, if there is anything to copy to and the last copy is not too new.

        Args:
            every: seconds from one copy to the next; in any case so many that copying takes a tenth of the time at
                most.
        """
        if self._target is not None and time.monotonic() - self._copied >= max(every, _SHARE * self._took):
            self._copy(self._target)

    def close(self) -> None:
        """Copy the last, and let go of the folder on this host."""
        if self._target is not None:
            self._copy(self._target)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _copy(self, target: files.Folder) -> None:
        start = time.monotonic()
        for name, size in self._found():
            if size != self._sizes.get(name):
                with open(os.path.join(self.path, name), "rb") as file:
                    target.write(name, file.read(size))
                self._sizes[name] = size
        self._copied = time.monotonic()
        self._took = self._copied - start

    def _fetch(self, target: files.Folder) -> None:
        for inner in self._inner:
            for name, size in target.sizes(inner).items():
                if _MARK in name:
                    below = os.path.join(inner, name)
                    os.makedirs(os.path.join(self.path, inner), exist_ok=True)
                    with open(os.path.join(self.path, below), "wb") as file:
                        file.write(target.read(below))
                    self._sizes[below] = size

    def _found(self) -> list[tuple[str, int]]:
        names = [
            os.path.join(inner, name) for inner in self._inner for name in _event_files(os.path.join(self.path, inner))
        ]
        return [(name, os.path.getsize(os.path.join(self.path, name))) for name in names]


def _event_files(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _MARK in name) if os.path.isdir(folder) else []


def _wait_turn(folder: str) -> None:
    """Wait until a new file is the last one by its name; one that another host's clock dates far ahead stays ahead."""
    seconds = [name.partition(_MARK)[2].partition(".")[0] for name in _event_files(folder)]
    ahead = max((int(each) for each in seconds if each.isdigit()), default=0) + 1 - time.time()
    if 0 < ahead <= _TURN:
        time.sleep(ahead)


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether event files, which have single precision, hold the same of both."""
    return one.keys() == other.keys() and all(
        np.array_equal(np.float32(value), np.float32(other[tag]), equal_nan=True) for tag, value in one.items()
    )
