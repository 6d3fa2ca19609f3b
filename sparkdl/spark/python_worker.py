"""Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


@cache
def freeze_imports() -> None:
    """Exempt imported modules from garbage collection, once per Python worker; ignored outside Spark tasks.

    Between two tasks a Python worker runs a full collection. After ``import torch`` that takes a tenth of a second, as
    long
    as a short task. Modules live as long as the process, so ``gc.freeze`` exempts them.
    """
    if TaskContext.get() is not None:
        gc.collect()  # freeze would keep existing garbage for ever
        gc.freeze()
