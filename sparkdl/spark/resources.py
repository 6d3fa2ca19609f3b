"""What the cluster can supply, and what a job is waiting for.

Spark answers a barrier job that it can never run after ten silent minutes, and lets one that waits for another
wait for ever. Here both are asked about beforehand and watched. Every call into the JVM is in this file.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from sparkdl.cluster.local import Slots
from sparkdl.cluster.shutdown import take_sigterm
from sparkdl.errors import ClusterUnavailable, InvalidInput

_POLL = 0.25  # seconds
_ENCRYPTION = (
    "spark.network.crypto.enabled",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.io.encryption.enabled",
)

Report = Callable[[str, float], None]
"""Called with what is being waited for and for how many seconds it has been."""


def check(spark: SparkSession, size: int, *, allow_plaintext: bool) -> None:
    """Refuse a gang that the configuration can never run.

    Raises:
        InvalidInput: traffic is to be encrypted and plain text is not allowed.
        ClusterUnavailable: too few slots, or dynamic allocation.
    """
    check_setting(spark, allow_plaintext=allow_plaintext)
    slots = find_slots(spark)
    if slots.ever is not None and slots.ever < size:
        raise ClusterUnavailable(
            f"{size} members need {size} task slots at a time, and the configuration allows for {slots.ever}: "
            f"{_why(spark)}. Ask for fewer members (numWorkers) or more cores."
        )


def check_setting(spark: SparkSession, *, allow_plaintext: bool) -> None:
    """Refuse a configuration in which no gang runs, whatever its size; see ``check``."""
    check_encryption(spark, allow_plaintext=allow_plaintext)
    if setting(spark, "spark.dynamicAllocation.enabled") == "true":
        raise ClusterUnavailable(
            "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage under dynamic allocation "
            "(SPARK-24942). Submit with spark.dynamicAllocation.enabled=false."
        )


def check_encryption(spark: SparkSession, *, allow_plaintext: bool) -> None:
    """Refuse a configuration that asks for encryption, which gradients and rows on local disks do not have.

    Raises:
        InvalidInput: it does, and plain text is not allowed.
    """
    encrypted = [name for name in _ENCRYPTION if setting(spark, name) == "true"]
    if encrypted and not allow_plaintext:
        raise InvalidInput(
            f"{encrypted[0]} is on, but gradients travel between members, and rows lie on local disks, in plain "
            "text. Set allowPlaintext=True if the network and the disks may see them."
        )


def setting(spark: SparkSession, name: str) -> str:
    """A setting of the session or of the application; empty where it is not set."""
    return str(spark.conf.get(name, ""))


def find_slots(spark: SparkSession) -> Slots:
    """How many tasks can run at a time, on the executors that have registered and that the configuration asks for."""
    java = spark.sparkContext._jsc.sc()
    now = int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
    return Slots(now, _most(spark, now))


def _most(spark: SparkSession, now: int) -> int | None:
    cpus = int(setting(spark, "spark.task.cpus") or 1)
    master = str(spark.sparkContext.master)
    simulated = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if simulated:
        return int(simulated[1]) * (int(simulated[2]) // cpus)
    if master.startswith("local"):
        return now  # local mode has all its slots from the start
    if setting(spark, "spark.cores.max"):
        return int(setting(spark, "spark.cores.max")) // cpus
    instances, cores = setting(spark, "spark.executor.instances"), setting(spark, "spark.executor.cores")
    if instances and cores:
        return int(instances) * (int(cores) // cpus)
    return None


def _why(spark: SparkSession) -> str:
    names = ("spark.task.cpus", "spark.cores.max", "spark.executor.instances", "spark.executor.cores")
    known = [f"{name} = {setting(spark, name)}" for name in names if setting(spark, name)]
    return ", ".join([f"master = {spark.sparkContext.master}", *known])


def wait_for_slots(spark: SparkSession, size: int, *, timeout: float, report: Report) -> None:
    """Wait until enough executors have registered.

    Raises:
        ClusterUnavailable: they have not within ``timeout`` seconds.
    """
    start = time.monotonic()
    while True:
        slots, waited = find_slots(spark), time.monotonic() - start
        if slots.now is None or slots.now >= size:
            return
        if waited > timeout:
            raise ClusterUnavailable(
                f"{size} members need {size} task slots at a time; after {waited:.0f} s the executors offer "
                f"{slots.now}. Start more executors, ask for fewer members (numWorkers) or wait longer (slotWait)."
            )
        report(f"{slots.now} of {size} task slots", waited)
        threading.Event().wait(_POLL)


def qualified(spark: SparkSession, path: str) -> str:
    """The path as a URI with its filesystem, as Spark itself would resolve it."""
    context = spark.sparkContext
    hadoop: Any = context._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    system = hadoop.getFileSystem(context._jsc.hadoopConfiguration())
    return str(system.makeQualified(hadoop).toString())


@contextmanager
def described(spark: SparkSession, what: str) -> Iterator[None]:
    """A block whose jobs the Spark UI calls so; those of this thread, and of threads that inherit its properties."""
    context, name, before = spark.sparkContext, "spark.job.description", None
    with suppress(Py4JError, AttributeError):  # of a context that was stopped, here and below
        before = context.getLocalProperty(name)
        context.setLocalProperty(name, what)
    try:
        yield
    finally:
        with suppress(Py4JError, AttributeError):
            context.setLocalProperty(name, before)  # type: ignore[arg-type]


@contextmanager
def forwarding_sigterm(spark: SparkSession) -> Iterator[None]:
    """Within the block, SIGTERM to the JVM asks this process to stop, as ``sparkdl.cluster.shutdown.stoppable`` does.

    Under spark-submit the JVM is the parent, and the process that a cluster manager or ``docker stop`` signals. By
    itself it would stop the SparkContext, and with it the gang, at once. Where it cannot be told otherwise, a warning
    says so.
    """
    try:
        signals = spark.sparkContext._jvm.sun.misc  # type: ignore[union-attr]
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        term = signals.Signal("TERM")
        before = signals.Signal.handle(term, _Forward())
    except (Py4JError, PySparkException) as error:
        reason = " ".join(str(error).split())[:200]
        warnings.warn(f"SIGTERM to the JVM is not trapped, and ends a fit before it is saved: {reason}", stacklevel=3)
        yield
        return
    try:
        yield
    finally:
        with suppress(Py4JError):  # of a JVM that has ended
            signals.Signal.handle(term, before)


class _Forward:
    """What the JVM calls, as py4j has it."""

    def handle(self, _: Any) -> None:
        """SIGTERM has arrived."""
        take_sigterm("Spark's JVM")

    class Java:
        """Says which interface this is."""

        implements = ["sun.misc.SignalHandler"]  # noqa: RUF012 - py4j reads it as it is


class JobWatch:
    """Watches a tagged job from a thread, and cancels it when it has waited too long for free slots.

    Args:
        spark: the session that runs the job.
        tag: the job's tag; jobs that the calling thread starts inside the block carry it.
        size: tasks of the barrier stage.
        timeout: seconds that the barrier stage may wait for slots that other jobs hold.
        report: called about twice a second while it waits.
    """

    def __init__(self, spark: SparkSession, tag: str, size: int, *, timeout: float, report: Report) -> None:
        self.gave_up: float | None = None
        self._context = spark.sparkContext
        self._tag, self._size, self._timeout, self._report = tag, size, timeout, report
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"sparkdl-watch-{tag}", daemon=True)

    def __enter__(self) -> JobWatch:
        self._context.addJobTag(self._tag)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._context.removeJobTag(self._tag)
        self._thread.join()

    def cancel(self) -> None:
        """Cancel the job and return when it is no longer active."""
        self._context.cancelJobsWithTag(self._tag)
        while self._job() is not None and not self._done.wait(_POLL):
            continue

    def _watch(self) -> None:
        began: float | None = None
        while not self._done.wait(_POLL):
            if not self._waits_for_slots():
                began = None
                continue
            began = began or time.monotonic()
            waited = time.monotonic() - began
            if waited > self._timeout:
                self.gave_up = waited
                self._context.cancelJobsWithTag(self._tag)
                return
            self._report(f"{self._size} free task slots", waited)

    def _waits_for_slots(self) -> bool:
        """Whether a stage of the job has tasks to run, and none of the job's tasks runs.

        The scheduler is asked and not the status store, whose counts may be as old as an executor's heartbeat.
        """
        job = self._job()
        sets = [] if job is None else [found for found in map(self._task_set, job.stageIds()) if found is not None]
        ready = any(found.tasksSuccessful() < found.numTasks() for found in sets)
        return ready and not any(found.runningTasks() for found in sets)

    def _task_set(self, stage: int) -> Any:
        """The stage's tasks; None where it waits for a stage before it, or is done."""
        spark = self._context._jsc.sc()
        info = spark.statusTracker().getStageInfo(stage)
        if info.isEmpty():
            return None
        found = spark.taskScheduler().taskSetManagerForAttempt(stage, info.get().currentAttemptId())
        return None if found.isEmpty() or found.get().isZombie() else found.get()

    def _job(self) -> Any:
        tracker = self._context._jsc.sc().statusTracker()
        active = set(tracker.getActiveJobIds())
        for identity in tracker.getJobIdsForTag(self._tag):
            if identity in active:
                found = tracker.getJobInfo(identity)
                return found.get() if found.isDefined() else None
        return None


def release(held: DataFrame) -> None:
    """Free the blocks of a DataFrame that ``localCheckpoint`` gave.

    Spark does so by itself some time after the JVM has forgotten it, and has no public call for it; without a JVM to
    ask that is how it stays.
    """
    with suppress(Py4JError, PySparkException, AttributeError):
        held._jdf.queryExecution().logical().rdd().unpersist(False)
