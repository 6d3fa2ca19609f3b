"""Starts the executors' Python workers, and loads PyTorch in them, while the application does other work.

A job with one short task per slot reaches all executors; ``sparkdl.spark.python_daemon`` has what a task does. In a
classic session the job is over an RDD: the first plan of a DataFrame takes a second, in which the ETL may fill all
slots.

Spark starts a daemon per environment, and the environments of RDDs and of DataFrames differ in one variable. RDDs of an
application that warms up get it too: both kinds of tasks then share daemons and workers.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from pyspark.sql import SparkSession

from sparkdl.errors import ClusterUnavailable
from sparkdl.spark.python_daemon import load_pytorch
from sparkdl.spark.session import session_of
from sparkdl.spark.session.errors import GONE
from sparkdl.spark.slots.capacity import find_slots, wait_for_slots

logger = logging.getLogger(__name__)

_NAME = "sparkdl-warm-up"  # of threads
_warm: set[tuple[str, str]] = set()  # application and executor
_lock = threading.Lock()


def warm_up(spark: SparkSession, size: int = 1, *, timeout: float = 120.0) -> None:
    """Warm up new executors in the background, as soon as they have ``size`` slots or after ``timeout`` seconds."""
    session_of(spark).share_workers()
    if _cold(spark):
        threading.Thread(target=_run, args=(spark, size, timeout), name=_NAME, daemon=True).start()


def await_warm_up(spark: SparkSession, size: int, *, limit: float = 10.0) -> None:
    """Wait until running warm-ups end, if there are more slots than ``size``.

    The gang would otherwise get the slots that warm-up tasks leave free, perhaps all of them on one host.
    """
    if (find_slots(spark).now or 0) > size:
        for thread in threading.enumerate():
            if thread.name == _NAME:
                thread.join(limit)


def _cold(spark: SparkSession) -> set[tuple[str, str]]:
    session = session_of(spark)
    return {(session.application(), executor) for executor in session.executors()} - _warm


def _run(spark: SparkSession, size: int, timeout: float) -> None:
    try:
        with suppress(ClusterUnavailable):
            wait_for_slots(spark, size, timeout=timeout, report=lambda what, seconds: None)
        with _lock:
            cold = _cold(spark)
            _warm.update(cold)
        if cold:
            session = session_of(spark)
            with session.described("sparkdl: load PyTorch"):
                session.run_tasks(load_pytorch, [*range(find_slots(spark).now or size)])
    except GONE:  # what is wrong fails the job that needs the workers, too
        logger.debug("no warm-up", exc_info=True)
