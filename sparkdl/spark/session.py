"""What sparkdl asks of a Spark session: each function says what it wants, and nothing above imports SparkContext.

This file, ``sparkdl.spark.jvm`` and the runner of tasks (``sparkdl.spark.tasks``, ``sparkdl.spark.independent_tasks``)
are the only ones that touch a SparkContext, RDDs, broadcasts, storage levels and tags of jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import Broadcast, SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl.io.files import StrPath

SharedBytes = Broadcast[bytes] | bytes
"""Bytes that travel with each task, or that Spark sends to each executor once (``share``)."""


def is_classic(spark: SparkSession) -> bool:
    """Whether the session has a SparkContext; a session of Spark Connect has none."""
    try:
        return spark.sparkContext is not None
    except (AttributeError, PySparkException):
        return False


# ---- settings and paths ------------------------------------------------------------------------------------------


def setting(spark: SparkSession, name: str) -> str:
    """A setting of the session or application; empty if unset."""
    return str(spark.conf.get(name, ""))


def master(spark: SparkSession) -> str:
    """The URL of the cluster's master, such as ``local[2]``."""
    return str(spark.sparkContext.master)


def application(spark: SparkSession) -> str:
    """The identity of the application."""
    return str(spark.sparkContext.applicationId)


def result_limit() -> int | None:
    """Bytes that Spark's driver accepts as results of a job; None if there is no limit or no driver."""
    context: Any = SparkContext._active_spark_context
    return context and (int(context._jsc.sc().conf().getSizeAsBytes("spark.driver.maxResultSize", "1g")) or None)


def qualify(spark: SparkSession, path: StrPath) -> str:
    """The path as a URI with its filesystem, as Spark resolves it."""
    context = spark.sparkContext
    hadoop: Any = context._jvm.org.apache.hadoop.fs.Path(os.fspath(path))  # type: ignore[union-attr]
    system = hadoop.getFileSystem(context._jsc.hadoopConfiguration())
    return str(system.makeQualified(hadoop).toString())


# ---- capacity ------------------------------------------------------------------------------------------------------


def parallelism(spark: SparkSession) -> int:
    """Spark's default number of partitions, ``spark.default.parallelism``."""
    return int(spark.sparkContext.defaultParallelism)


def concurrent_tasks(spark: SparkSession, profile: ResourceProfile | None) -> int:
    """The number of tasks with a profile that the registered executors run at a time."""
    java = spark.sparkContext._jsc.sc()
    of_stage: Any = None if profile is None else profile._java_resource_profile
    return int(java.maxNumConcurrentTasks(of_stage or java.resourceProfileManager().defaultResourceProfile()))


def registration_wait(spark: SparkSession) -> float:
    """Seconds in which Spark still waits for the executors of an application that has just begun."""
    context = spark.sparkContext
    limit = context._jsc.sc().conf().getTimeAsSeconds("spark.scheduler.maxRegisteredResourcesWaitingTime", "30s")
    return max(0.0, context.startTime / 1000 + int(limit) - time.time())


def executors(spark: SparkSession) -> frozenset[str]:
    """Addresses of the registered executors, and of the driver."""
    names = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")
    return frozenset(str(names).split())


def task_attempts(spark: SparkSession) -> int:
    """Number of times Spark tries a task."""
    return int(spark.sparkContext._jsc.sc().taskScheduler().maxTaskFailures())


def count_rows(rows: DataFrame, limit: int) -> int:
    """The number of rows, at most ``limit``; Spark reads partition after partition, without columns, until it is known.

    ``limit(n).count()`` would read up to n rows of every partition.
    """
    return int(rows.select(F.lit(1)).limit(limit)._jdf.collectAsList().size())


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


# ---- jobs ----------------------------------------------------------------------------------------------------------


@contextmanager
def job_description(spark: SparkSession, what: str) -> Iterator[None]:
    """Describe the block's jobs in the Spark UI, for this thread and threads that inherit its properties."""
    context, name, before = spark.sparkContext, "spark.job.description", None
    with suppress(Py4JError, AttributeError):  # of a stopped context, here and below
        before = context.getLocalProperty(name)
        context.setLocalProperty(name, what)
    try:
        yield
    finally:
        with suppress(Py4JError, AttributeError):
            context.setLocalProperty(name, before)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TaggedJobs:
    """The jobs with a tag.

    Attributes:
        spark: the session that starts them.
        tag: their tag, unique in the application.
    """

    spark: SparkSession
    tag: str

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Tag the jobs that this thread starts inside the block."""
        context = self.spark.sparkContext
        context.addJobTag(self.tag)
        try:
            yield
        finally:
            context.removeJobTag(self.tag)

    def cancel(self) -> None:
        """Cancel the jobs, without waiting for their end."""
        self.spark.sparkContext.cancelJobsWithTag(self.tag)

    def runs(self) -> bool:
        """Whether a job has not ended."""
        return self._job() is not None

    def state(self) -> str | None:
        """Whether pending tasks wait or barrier tasks run, by the scheduler; the status store lags behind."""
        job = self._job()
        stages = [] if job is None else [tasks for tasks in map(self._task_set, job.stageIds()) if tasks is not None]
        if any(tasks.runningTasks() for tasks in stages):
            return "running" if all(tasks.isBarrier() for tasks in stages) else None
        return "waiting" if any(tasks.tasksSuccessful() < tasks.numTasks() for tasks in stages) else None

    def _task_set(self, stage: int) -> Any:
        spark = self.spark.sparkContext._jsc.sc()
        info = spark.statusTracker().getStageInfo(stage)
        if info.isEmpty():
            return None
        tasks = spark.taskScheduler().taskSetManagerForAttempt(stage, info.get().currentAttemptId())
        return None if tasks.isEmpty() or tasks.get().isZombie() else tasks.get()

    def _job(self) -> Any:
        tracker = self.spark.sparkContext._jsc.sc().statusTracker()
        active = set(tracker.getActiveJobIds())
        for identity in tracker.getJobIdsForTag(self.tag):
            if identity in active:
                job = tracker.getJobInfo(identity)
                return job.get() if job.isDefined() else None
        return None


def java(spark: SparkSession) -> tuple[Any, Any]:
    """The classes of the driver's JVM, and py4j's gateway to them."""
    return spark.sparkContext._jvm, spark.sparkContext._gateway


# ---- Python workers ------------------------------------------------------------------------------------------------


def share_workers(spark: SparkSession) -> None:
    """Let later tasks of RDDs run in the Python workers of DataFrames."""
    if spark.conf.get("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled") == "true":
        spark.sparkContext.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"


def run_tasks(
    spark: SparkSession, task: Callable[[Iterable[int]], Iterator[Any]], numbers: list[int], *, barrier: bool = False
) -> list[Any]:
    """Run one job, in which ``task`` gets each number as the only row of a task; return the rows of all tasks."""
    rows = spark.sparkContext.parallelize(numbers, len(numbers))  # tasks of a range would read their input
    return list((rows.barrier() if barrier else rows).mapPartitions(task).collect())


def share(spark: SparkSession, packed: bytes) -> Broadcast[bytes]:
    """Bytes that Spark sends to each executor once, for all its tasks, until nothing refers to them."""
    return spark.sparkContext.broadcast(packed)


def shared(packed: SharedBytes) -> bytes:
    """In a task, the bytes."""
    return packed.value if isinstance(packed, Broadcast) else packed


@contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Persist rows in memory and on disk for the block."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        frame.unpersist()


def release(frame: DataFrame) -> None:
    """Free the blocks of a DataFrame from ``localCheckpoint``, if the JVM still runs.

    Spark frees them only some time after the JVM's garbage collection, and has no public call for it.
    """
    with suppress(PySparkException, Py4JError, AttributeError):  # of a stopped context
        frame._jdf.queryExecution().logical().rdd().unpersist(False)
