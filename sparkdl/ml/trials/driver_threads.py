"""Calls in threads of the driver; each thread runs its Spark jobs beside the jobs of the other threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    session: SparkSession, call: Callable[[Item], Result], items: Sequence[Item], parallelism: int
) -> list[Result | BaseException]:
    """Call a function for each item, ``parallelism`` at a time; return the results and errors in order."""

    def caught(item: Item) -> Result | BaseException:
        try:
            return call(item)
        except BaseException as error:  # the pool would never return if SystemExit ended a thread
            return error

    # As in pyspark.ml.tuning, the threads inherit the job group, tags and properties. Each call needs its own copy of
    # them: Spark identifies queries by them.
    inheriting = inheritable_thread_target(session)
    calls = [inheriting(partial(caught, item)) for item in items]
    with ThreadPool(max(1, min(parallelism, len(calls)))) as pool:
        return pool.map(lambda one: one(), calls, chunksize=1)
