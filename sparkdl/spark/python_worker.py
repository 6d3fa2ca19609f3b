"""Spark's Python workers, which run one task after the other, and their local disks."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark import TaskContext

from sparkdl.io.files import local_directories
from sparkdl.io.pickling import unship


@dataclass(frozen=True)
class PickledTask:
    """A task whose modules, such as torch, are imported when it runs, so that the import can be timed."""

    packed: bytes

    def run(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run the task, which gets the time when the imports began, in unix seconds."""
        began = time.time()
        yield from unship(self.packed).run(batches, began)


@cache
def freeze_imports() -> None:
    """Exempt imported modules from garbage collection, once per Python worker; ignored outside Spark tasks.

    Between two tasks a Python worker runs a full collection. After ``import torch`` that takes as long as a short task,
    a tenth of a second.
    """
    if TaskContext.get() is not None:
        gc.collect()  # freeze would keep existing garbage for ever
        gc.freeze()


def local_directory(index: int) -> str:
    """A folder on one of the executor's local disks, chosen by ``index``; Spark removes it with the executor."""
    folders = local_directories()
    return folders[index % len(folders)]
