"""Spark's Python workers, which run one task after the other, and their local disks."""

from __future__ import annotations

import gc
import os
import tempfile
from functools import cache

from pyspark import TaskContext


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


def local_directories() -> list[str]:
    """The executor's local disks; without any, the system's temporary folder."""
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(folder)]
    return folders or [tempfile.gettempdir()]
