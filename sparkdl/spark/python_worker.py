"""Spark's Python workers, which run one task after the other, and their local disks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import cloudpickle
import pyarrow as pa
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


@dataclass(frozen=True)
class NumberTask:
    """A task that gets one of the ``numbers``, by the only value of its query's rows; its own rows are pickled."""

    task: Callable[[Iterable[int]], Iterator[Any]]
    numbers: tuple[int, ...]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task over a partition of a range."""
        numbers = (self.numbers[index] for batch in batches for index in batch.column(0).to_pylist())
        for row in self.task(numbers):
            yield pa.RecordBatch.from_pydict({"row": [cloudpickle.dumps(row)]})


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
