"""The classic session, whose driver runs in a JVM of this host: a SparkContext, RDDs, broadcasts and py4j."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import Broadcast, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.resource import ResourceProfile
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sparkdl.cluster.shutdown import take_sigterm
from sparkdl.spark.session import classic_slots
from sparkdl.spark.session.errors import JVM_ERRORS
from sparkdl.spark.session.settings import setting, task_requests

if TYPE_CHECKING:
    from pyspark.ml.wrapper import JavaParams  # it takes a worker a second to import pyspark.ml


@dataclass(frozen=True)
class ClassicSession:
    """``sparkdl.spark.session.protocol.Session`` by a SparkContext."""

    spark: SparkSession

    def master(self) -> str:
        return str(self.spark.sparkContext.master)

    def application(self) -> str:
        return str(self.spark.sparkContext.applicationId)

    def qualify(self, path: str) -> str:
        context = self.spark.sparkContext
        hadoop: Any = context._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        system = hadoop.getFileSystem(context._jsc.hadoopConfiguration())
        return str(system.makeQualified(hadoop).toString())

    @contextmanager
    def forwarding_sigterm(self) -> Iterator[None]:
        try:
            signals: Any = self.spark.sparkContext._jvm.sun.misc  # type: ignore[union-attr]
            ensure_callback_server_started(self.spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
            term = signals.Signal("TERM")
            before = signals.Signal.handle(term, _Forward())
        except JVM_ERRORS as error:
            reason = " ".join(str(error).split())[:200]
            warnings.warn(
                f"SIGTERM to the JVM is not trapped, and ends a fit before it is saved: {reason}", stacklevel=3
            )
            yield
            return
        try:
            yield
        finally:
            with suppress(Py4JError):  # the JVM may have ended
                signals.Signal.handle(term, before)

    def channel_address(self) -> tuple[str, str] | None:
        host = setting(self.spark, "spark.driver.host") or "127.0.0.1"
        return host, setting(self.spark, "spark.driver.bindAddress") or host

    def has_rdds(self) -> bool:
        return True

    # ---- capacity --------------------------------------------------------------------------------------------------

    def parallelism(self) -> int:
        return int(self.spark.sparkContext.defaultParallelism)

    def slots(self, cpus: int | None, gpus: float | None) -> tuple[int | None, int | None]:
        now = classic_slots.concurrent_tasks(self.spark, self.profile(cpus, gpus))
        return now, classic_slots.configured_tasks(self.spark, now, cpus, gpus)

    def hidden_slots(self) -> str:
        return ""

    def profile(self, cpus: int | None, gpus: float | None) -> ResourceProfile | None:
        requests = task_requests(self.spark, cpus, gpus)
        return None if requests is None else classic_slots.profile(self.spark, requests)

    def registration_wait(self) -> float:
        return classic_slots.registration_wait(self.spark)

    def task_attempts(self) -> int:
        return int(self.spark.sparkContext._jsc.sc().taskScheduler().maxTaskFailures())

    def executors(self) -> frozenset[str]:
        return classic_slots.executors(self.spark)

    # ---- jobs ------------------------------------------------------------------------------------------------------

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        context, name, before = self.spark.sparkContext, "spark.job.description", None
        with suppress(Py4JError, AttributeError):  # of a stopped context, here and below
            before = context.getLocalProperty(name)
            context.setLocalProperty(name, text)
        try:
            yield
        finally:
            with suppress(Py4JError, AttributeError):
                context.setLocalProperty(name, before)  # type: ignore[arg-type]

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        context = self.spark.sparkContext
        context.addJobTag(tag)
        try:
            yield
        finally:
            context.removeJobTag(tag)

    def collect(self, rows: DataFrame, tag: str) -> list[Any]:
        return rows.collect()

    def cancel(self, tag: str) -> None:
        self.spark.sparkContext.cancelJobsWithTag(tag)

    def runs(self, tag: str) -> bool:
        return self._job(tag) is not None

    def state(self, tag: str) -> str | None:
        # By the scheduler; the status store lags behind.
        job = self._job(tag)
        stages = [] if job is None else [tasks for tasks in map(self._task_set, job.stageIds()) if tasks is not None]
        if any(tasks.runningTasks() for tasks in stages):
            return "running" if all(tasks.isBarrier() for tasks in stages) else None
        return "waiting" if any(tasks.tasksSuccessful() < tasks.numTasks() for tasks in stages) else None

    def tasks(self, tag: str) -> None:
        """None: the workers' events say more."""

    def _task_set(self, stage: int) -> Any:
        spark = self.spark.sparkContext._jsc.sc()
        info = spark.statusTracker().getStageInfo(stage)
        if info.isEmpty():
            return None
        tasks = spark.taskScheduler().taskSetManagerForAttempt(stage, info.get().currentAttemptId())
        return None if tasks.isEmpty() or tasks.get().isZombie() else tasks.get()

    def _job(self, tag: str) -> Any:
        tracker = self.spark.sparkContext._jsc.sc().statusTracker()
        active = set(tracker.getActiveJobIds())
        for identity in tracker.getJobIdsForTag(tag):
            if identity in active:
                job = tracker.getJobInfo(identity)
                return job.get() if job.isDefined() else None
        return None

    def count_rows(self, rows: DataFrame, limit: int) -> int:
        # ``limit(n).count()`` would read up to n rows of every partition.
        return int(rows.select(F.lit(1)).limit(limit)._jdf.collectAsList().size())

    def transformed_schema(self, stage: JavaParams, frame: DataFrame) -> StructType:
        stage._transfer_params_to_java()
        java: Any = stage._java_obj
        return StructType.fromJson(json.loads(java.transformSchema(frame._jdf.schema()).json()))

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def share_workers(self) -> None:
        if self.spark.conf.get("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled") == "true":
            self.spark.sparkContext.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"

    def run_tasks(
        self, task: Callable[[Iterable[int]], Iterator[Any]], numbers: list[int], *, barrier: bool = False
    ) -> list[Any]:
        rows = self.spark.sparkContext.parallelize(numbers, len(numbers))  # tasks of a range would read their input
        return list((rows.barrier() if barrier else rows).mapPartitions(task).collect())

    def share(self, packed: bytes) -> Broadcast[bytes]:
        return self.spark.sparkContext.broadcast(packed)

    def query_limit(self) -> int | None:
        return None

    def release(self, frame: DataFrame) -> None:
        # Spark frees the blocks only some time after the JVM's garbage collection, and has no public call for it.
        with suppress(PySparkException, Py4JError, AttributeError):  # of a stopped context
            frame._jdf.queryExecution().logical().rdd().unpersist(False)


def result_limit() -> int | None:
    """Bytes that Spark's driver accepts as results of a job; None if there is no limit or no driver."""
    context: Any = SparkContext._active_spark_context
    return context and (int(context._jsc.sc().conf().getSizeAsBytes("spark.driver.maxResultSize", "1g")) or None)


class _Forward:
    def handle(self, _: Any) -> None:
        take_sigterm("Spark's JVM")

    class Java:
        implements = ["sun.misc.SignalHandler"]  # noqa: RUF012 - py4j reads it as it is
