"""The cluster's capacity in task slots, and settings under which no gang can run.

Spark fails an impossible barrier job only after ten silent minutes, so a gang checks both first.
Over Spark Connect the slots may be unknown: a barrier job that waits for them is cancelled after ``resource_timeout``.
"""

from __future__ import annotations

import threading
import time
import warnings

from pyspark.sql import SparkSession

from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.shutdown import POLL
from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.spark.job_watch import Report
from sparkdl.spark.session import session_of, setting
from sparkdl.spark.session.settings import EXECUTOR_GPUS, TASK_GPUS
from sparkdl.spark.slots.task_resources import TaskResources

_ENCRYPTION = (
    "spark.network.crypto.enabled",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.io.encryption.enabled",
)

_SETTINGS = TaskResources()


def check(
    spark: SparkSession,
    size: int,
    requests: TaskResources = _SETTINGS,
    work: bytes = b"",
    *,
    allow_unencrypted: bool,
) -> None:
    """Raise as ``check_size`` and ``check_setting``, or ClusterUnavailable if there can never be enough slots."""
    check_size(spark, work)
    check_setting(spark, allow_unencrypted=allow_unencrypted)
    check_slots(spark, size, requests)


def check_slots(spark: SparkSession, size: int, requests: TaskResources = _SETTINGS) -> None:
    """Raise ClusterUnavailable if there can never be ``size`` slots."""
    slots = find_slots(spark, requests)
    if slots.ever is not None and slots.ever < size:
        raise ClusterUnavailable(
            f"{size} workers need {size} task slots at a time, but the configuration allows {slots.ever}: "
            f"{_why(spark, requests)}. Lower numWorkers or add cores{' and GPUs' * bool(requests.gpus)}."
        )


def check_setting(spark: SparkSession, *, allow_unencrypted: bool) -> None:
    """Raise as ``check_encryption``, or ClusterUnavailable under dynamic allocation."""
    check_encryption(spark, allow_unencrypted=allow_unencrypted)
    if setting(spark, "spark.dynamicAllocation.enabled") == "true":
        raise ClusterUnavailable(
            "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage under dynamic allocation "
            "(SPARK-24942). Submit with spark.dynamicAllocation.enabled=false."
        )


def check_size(spark: SparkSession, work: bytes) -> None:
    """Raise InvalidInput if no query carries a worker's pickled work."""
    limit = session_of(spark).query_limit()
    if limit is not None and len(work) > limit:
        raise InvalidInput(
            f"a worker's pickled work has {len(work) / 1e6:.0f} MB, and a query of Spark Connect carries at most "
            f"{limit / 1e6:.0f} MB. If the model is a module, set a factory with modelArgs instead; let workers read "
            "other large values from files; or use a classic session."
        )


def check_encryption(spark: SparkSession, *, allow_unencrypted: bool) -> None:
    """Raise InvalidInput if Spark must encrypt and plain text is not allowed.

    Gradients, and rows on local disks, are plain text.
    """
    enabled = encrypted(spark)
    if enabled and not allow_unencrypted:
        raise InvalidInput(
            f"{enabled[0]} is true, but sparkdl encrypts neither gradients on the network nor rows on local disks. "
            "If that is acceptable, set allowUnencrypted=True."
        )


def encrypted(spark: SparkSession) -> list[str]:
    """The settings that let Spark encrypt connections or files."""
    return [name for name in _ENCRYPTION if setting(spark, name) == "true"]


def warn_of_address_limit(spark: SparkSession) -> None:
    """Warn the caller of a constructor if Spark limits the address space of Python workers."""
    if limit := setting(spark, "spark.executor.pyspark.memory"):
        warnings.warn(
            f"spark.executor.pyspark.memory is {limit}: it limits the address space of workers. torch and "
            "memory-mapped rows reserve more address space than they use. Leave it unset, and set "
            "spark.executor.memoryOverhead.",
            stacklevel=4,
        )


def find_slots(spark: SparkSession, requests: TaskResources = _SETTINGS) -> Capacity:
    """Number of tasks with these requests that can run at the same time.

    It counts the registered executors, and all that are configured.
    """
    return Capacity(*session_of(spark).slots(requests.cpus, requests.gpus))


def _why(spark: SparkSession, requests: TaskResources) -> str:
    names = ("spark.task.cpus", "spark.cores.max", "spark.executor.instances", "spark.executor.cores")
    of_gpus = (EXECUTOR_GPUS, TASK_GPUS) if requests.gpus is None else (EXECUTOR_GPUS,)
    known = [f"{name} = {setting(spark, name)}" for name in (*names, *of_gpus) if setting(spark, name)]
    settings = {"taskCpus": requests.cpus, "taskGpus": requests.gpus}
    known += [f"{name} = {value:g}" for name, value in settings.items() if value is not None]
    return ", ".join([f"master = {session_of(spark).master()}", *known])


def wait_for_slots(
    spark: SparkSession, size: int, requests: TaskResources = _SETTINGS, *, timeout: float, report: Report
) -> None:
    """Wait until enough executors have registered; raises ClusterUnavailable after ``timeout`` seconds."""
    start = time.monotonic()
    while True:
        slots, waited = find_slots(spark, requests), time.monotonic() - start
        if slots.now is None or slots.now >= size:
            return
        if waited > timeout:
            raise ClusterUnavailable(
                f"{size} workers need {size} task slots at a time; after {waited:.0f} s the executors offer "
                f"{slots.now}. Add executors, lower numWorkers, or raise resourceTimeout."
            )
        report(f"{slots.now} of {size} task slots", waited)
        threading.Event().wait(POLL)
