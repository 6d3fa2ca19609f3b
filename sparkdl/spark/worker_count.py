"""Chooses the number of workers of a fit on a gang if its user does not."""

from __future__ import annotations

import threading
from contextlib import suppress
from multiprocessing.dummy import DummyProcess
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.errors import ClusterUnavailable
from sparkdl.spark.resources import find_slots, until_registered, wait_for_slots


def choose_workers(rows: DataFrame, batch_size: int, *, before: int | None = None) -> int:
    """Choose as many workers as there are task slots, at most one for each ``batch_size`` rows, at least one.

    In the first 30 s of an application, wait for its configured slots, as long as Spark does
    (``spark.scheduler.maxRegisteredResourcesWaitingTime``); then take those of the registered executors.

    Fits in the threads of a pool share the slots, such as those of a ``CrossValidator`` with ``parallelism``. Spark
    reads up to ``batch_size`` rows for each slot, without their columns; with one slot it reads none.

    Args:
        rows: the rows of the fit.
        batch_size: of the global batch.
        before: the number that the run had before, which its checkpoints need; it holds if there can be so many slots.
    """
    spark = rows.sparkSession
    slots = find_slots(spark)
    if before is not None and (slots.ever is None or before <= slots.ever):
        return before
    if slots.ever is not None:
        with suppress(ClusterUnavailable):
            wait_for_slots(spark, slots.ever, timeout=until_registered(spark), report=lambda what, seconds: None)
    most = (find_slots(spark).now or 1) // fits_at_once()
    if most <= 1:
        return 1
    counted = len(rows.select(F.lit(1)).limit(most * batch_size).collect())
    return max(1, counted // batch_size)


def fits_at_once() -> int:
    """The number of threads of the ``ThreadPool`` that runs this thread; 1 if none does."""
    tasks = _tasks(threading.current_thread())
    return 1 if tasks is None else sum(_tasks(thread) is tasks for thread in threading.enumerate())


def _tasks(thread: threading.Thread) -> Any:
    """The queue of tasks that the threads of a pool share: the first argument of their function."""
    arguments = getattr(thread, "_args", ())
    return arguments[0] if isinstance(thread, DummyProcess) and arguments else None
