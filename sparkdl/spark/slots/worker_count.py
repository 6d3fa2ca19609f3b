"""Chooses the number of workers of a gang, or of shards in rounds, if the user of a fit does not."""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from multiprocessing.dummy import DummyProcess
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.spark.session import session_of, setting
from sparkdl.spark.session.settings import TASK_GPUS
from sparkdl.spark.slots.capacity import find_slots, wait_for_slots
from sparkdl.spark.slots.task_resources import TaskResources

_MOST = 1 << 20  # rows that are counted; the driver's JVM gets an object for each


def choose_workers(
    rows: DataFrame,
    batch_size: int,
    requests: TaskResources,
    *,
    device: str = "cpu",
    least: int | None = None,
    previous: int | None = None,
) -> int:
    """Choose as many workers as there are task slots, at most one for each ``batch_size`` rows, at least one.

    In the first 30 s of an application, wait for its configured slots, as long as Spark does
    (``spark.scheduler.maxRegisteredResourcesWaitingTime``); then take those of the registered executors.

    Concurrent fits in the threads of a pool share the slots, such as those of a ``CrossValidator`` with
    ``parallelism``. Spark reads up to ``batch_size`` rows for each slot, without their columns; with one slot it reads
    none.

    Args:
        rows: the rows of the fit.
        batch_size: of the global batch.
        requests: of each worker's task.
        device: with ``"cuda"`` slots count only if each task has a GPU of its own.
        least: the smallest gang that may start; default: none. A gang that may grow is as large as the configuration.
        previous: the workers of the run's newest checkpoint, chosen again unless the configuration has fewer slots. A
            gang that may shrink and grow ignores it.

    Raises:
        InvalidInput: a session of Spark Connect cannot count the slots.
    """
    spark = rows.sparkSession
    configured = find_slots(spark, requests).ever
    if previous is not None and least is None and (configured is None or previous <= configured):
        return previous
    if device == "cuda" and gpus_of_tasks(spark, requests) < 1:
        warnings.warn(
            f"numWorkers is None, and {TASK_GPUS} is not 1: the slots do not say how many GPUs there are. The fit "
            "takes one worker; set numWorkers for more.",
            stacklevel=5,
        )
        return least or 1
    await_slots(spark, requests)
    now = find_slots(spark, requests).now
    if now is None:
        raise _unknown(spark)
    slots = ((now or 1) if least is None or configured is None else configured) // concurrent_fits()
    if slots <= 1:
        return least or 1
    limit = min(slots * batch_size, _MOST)
    counted = session_of(spark).count_rows(rows, limit)
    return max(least or 1, slots if counted == limit else counted // batch_size)


def choose_shards(spark: SparkSession, requests: TaskResources, *, device: str) -> int:
    """Choose the number of shards of a fit in rounds, one for each task that can run at a time.

    It waits for the slots of a new application like ``choose_workers``. On CPUs, without requests, it returns Spark's
    ``spark.default.parallelism``. If tasks are on GPUs that Spark does not assign, it returns 1, with a warning.

    Raises:
        InvalidInput: a setting of a session of Spark Connect hides the number of slots.
    """
    if device == "cuda" and not gpus_of_tasks(spark, requests):
        warnings.warn(
            f"numWorkers is None, and {TASK_GPUS} is not set: the slots do not say how many GPUs there are. The fit "
            "takes one shard; set numWorkers for more.",
            stacklevel=5,
        )
        return 1
    if session_of(spark).hidden_slots():
        raise _unknown(spark)
    await_slots(spark, requests)  # Spark's default follows the registered cores
    partitions = session_of(spark).parallelism()
    if device == "cpu" and requests.is_default:
        return partitions
    return find_slots(spark, requests).now or partitions


def _unknown(spark: SparkSession) -> InvalidInput:
    hidden = session_of(spark).hidden_slots()
    reason = f"{hidden} is set" if hidden else "the server's plans do not show it"
    return InvalidInput(f"numWorkers is None, and the number of slots is unknown, since {reason}. Set numWorkers.")


def gpus_of_tasks(spark: SparkSession, requests: TaskResources) -> float:
    """The GPUs that Spark assigns to each task; 0 if it assigns none."""
    return float(setting(spark, TASK_GPUS) or 0) if requests.gpus is None else requests.gpus


def await_slots(spark: SparkSession, requests: TaskResources) -> None:
    """Wait for the configured slots of an application that has just begun, as long as Spark does."""
    configured = find_slots(spark, requests).ever
    if configured is not None:
        limit = session_of(spark).registration_wait()
        with suppress(ClusterUnavailable):
            wait_for_slots(spark, configured, requests, timeout=limit, report=lambda what, seconds: None)


def concurrent_fits() -> int:
    """The number of fits that the ``ThreadPool`` of this thread runs at a time, times those of pools around it."""
    thread, fits = threading.current_thread(), 1
    while (tasks := _tasks(thread)) is not None:
        fits *= sum(_tasks(running) is tasks for running in threading.enumerate())
        thread = getattr(thread, "_parent", thread)  # the thread that made the pool
    return fits


def _tasks(thread: threading.Thread) -> Any:
    arguments = getattr(thread, "_args", ())
    return arguments[0] if isinstance(thread, DummyProcess) and arguments else None
