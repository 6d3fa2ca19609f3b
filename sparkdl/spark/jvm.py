"""Calls into the JVM: paths, descriptions of jobs, signals, persisted blocks; and how such calls fail."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from sparkdl.cluster.shutdown import take_sigterm

JVM_ERRORS = (PySparkException, Py4JError)
"""Errors of a Spark job, and of any other call into the JVM."""
GONE = (*JVM_ERRORS, AttributeError)
"""Errors of calls on a SparkContext that was stopped."""


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
    except JVM_ERRORS as error:
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


def release(held: DataFrame) -> None:
    """Free the blocks of a DataFrame that ``localCheckpoint`` gave.

    Spark does so by itself some time after the JVM has forgotten it, and has no public call for it; without a JVM to
    ask that is how it stays.
    """
    with suppress(*GONE):
        held._jdf.queryExecution().logical().rdd().unpersist(False)
