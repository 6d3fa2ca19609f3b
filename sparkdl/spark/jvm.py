"""Calls into the JVM: paths, job descriptions, signals, persisted blocks; and their errors."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sparkdl.cluster.shutdown import take_sigterm
from sparkdl.io.files import StrPath

if TYPE_CHECKING:
    from pyspark.ml.wrapper import JavaParams  # it takes a worker a second to import pyspark.ml

JVM_ERRORS = (PySparkException, Py4JError)
"""Errors of a Spark job, and of any other call into the JVM."""
GONE = (*JVM_ERRORS, AttributeError)
"""Errors of calls on a stopped SparkContext."""


def setting(spark: SparkSession, name: str) -> str:
    """A setting of the session or application; empty if unset."""
    return str(spark.conf.get(name, ""))


def qualify(spark: SparkSession, path: StrPath) -> str:
    """The path as a URI with its filesystem, as Spark resolves it."""
    context = spark.sparkContext
    hadoop: Any = context._jvm.org.apache.hadoop.fs.Path(os.fspath(path))  # type: ignore[union-attr]
    system = hadoop.getFileSystem(context._jsc.hadoopConfiguration())
    return str(system.makeQualified(hadoop).toString())


def result_limit() -> int | None:
    """Bytes that Spark's driver accepts as results of a job; None if there is no limit or no driver."""
    context: Any = SparkContext._active_spark_context
    return context and (int(context._jsc.sc().conf().getSizeAsBytes("spark.driver.maxResultSize", "1g")) or None)


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


@contextmanager
def forwarding_sigterm(spark: SparkSession) -> Iterator[None]:
    """Within the block, turn SIGTERM to the JVM into a stop request, like ``sparkdl.cluster.shutdown.stoppable``.

    Under spark-submit, cluster managers and ``docker stop`` signal the JVM, which is the parent process. By default it
    would stop the SparkContext, and the gang, at once. If the JVM accepts no handler, a warning is issued.
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
        with suppress(Py4JError):  # the JVM may have ended
            signals.Signal.handle(term, before)


class _Forward:
    def handle(self, _: Any) -> None:
        take_sigterm("Spark's JVM")

    class Java:
        implements = ["sun.misc.SignalHandler"]  # noqa: RUF012 - py4j reads it as it is


def transformed_schema(stage: JavaParams, frame: DataFrame) -> StructType:
    """The schema after a stage of pyspark.ml that the JVM has; raises Spark's errors if it rejects the columns."""
    stage._transfer_params_to_java()
    java: Any = stage._java_obj
    return StructType.fromJson(json.loads(java.transformSchema(frame._jdf.schema()).json()))


def release(frame: DataFrame) -> None:
    """Free the blocks of a DataFrame from ``localCheckpoint``, if the JVM still runs.

    Spark frees them only some time after the JVM's garbage collection, and has no public call for it.
    """
    with suppress(*GONE):
        frame._jdf.queryExecution().logical().rdd().unpersist(False)
