"""Slots of a classic session, by the scheduler and the settings."""

from __future__ import annotations

import re
import time
from typing import Any

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from sparkdl.spark.session.settings import EXECUTOR_GPUS, TASK_GPUS, setting


def concurrent_tasks(spark: SparkSession, profile: ResourceProfile | None) -> int:
    """The number of tasks with a profile that the registered executors run at a time."""
    java = spark.sparkContext._jsc.sc()
    of_stage: Any = None if profile is None else profile._java_resource_profile
    return int(java.maxNumConcurrentTasks(of_stage or java.resourceProfileManager().defaultResourceProfile()))


def configured_tasks(spark: SparkSession, now: int, cpus: int | None, gpus: float | None) -> int | None:
    """The number of tasks with these requests that all configured executors run at a time; None if unbounded.

    ``now`` is the number of the registered executors.
    """

    def number(name: str) -> int:
        return int(setting(spark, name) or 0)

    cpus, url = cpus or number("spark.task.cpus") or 1, str(spark.sparkContext.master)
    taken = float(setting(spark, TASK_GPUS) or 0) if gpus is None else gpus

    def slots(cores: int) -> int:
        offered = float(setting(spark, EXECUTOR_GPUS) or 0)
        return min(cores // cpus, int(offered / taken)) if taken and offered else cores // cpus

    simulated = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", url)
    if simulated:
        return int(simulated[1]) * slots(int(simulated[2]))
    if url.startswith("local"):
        return now  # local mode has all slots from the start
    if cores := number("spark.cores.max"):
        cores_each = number("spark.executor.cores")  # by default an executor has all cores of its host
        return cores // cores_each * slots(cores_each) if cores_each else cores // cpus
    if not (setting(spark, "spark.executor.instances") and setting(spark, "spark.executor.cores")):
        return None
    return number("spark.executor.instances") * slots(number("spark.executor.cores"))


def registration_wait(spark: SparkSession) -> float:
    """Seconds in which Spark still waits for the executors of an application that has just begun."""
    context = spark.sparkContext
    limit = context._jsc.sc().conf().getTimeAsSeconds("spark.scheduler.maxRegisteredResourcesWaitingTime", "30s")
    return max(0.0, context.startTime / 1000 + int(limit) - time.time())


def executors(spark: SparkSession) -> frozenset[str]:
    """Addresses of the registered executors, and of the driver."""
    names = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")
    return frozenset(str(names).split())


def profile(spark: SparkSession, requests: TaskResourceRequests) -> ResourceProfile:
    """The resource profile of tasks with these requests, registered with Spark.

    Equal requests share one profile: Spark keeps every profile until the application ends.
    """
    built: Any = ResourceProfileBuilder().require(requests).build._java_resource_profile
    manager: Any = spark.sparkContext._jsc.sc().resourceProfileManager()
    known = manager.getEquivalentProfile(built)
    if known.isDefined():
        return ResourceProfile(_java_resource_profile=known.get())
    manager.addResourceProfile(built)
    return ResourceProfile(_java_resource_profile=built)
