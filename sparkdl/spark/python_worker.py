"""Spark's Python workers, which go from task to task."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


@cache
def spare_imports() -> None:
    """Leave what is imported by now out of garbage collection, once in the life of a Python worker.

    A worker that has ended a task runs a full collection before it takes the next one. That looks at every object there
    is, and after ``import torch`` there are so many that it takes a tenth of a second, as long as a short task. Modules
    live as long as the process anyway, so they are moved to where the collector does not look (``gc.freeze``). Outside
    a Spark task nothing happens: another process's garbage is its own affair.
    """
    if TaskContext.get() is not None:
        gc.collect()  # what is garbage already must not be kept for ever
        gc.freeze()
