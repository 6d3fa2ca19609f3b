"""Calls into the JVM that are no business of a session: signals and stages; and the errors of calls."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sparkdl.cluster.shutdown import take_sigterm
from sparkdl.spark.session import java

if TYPE_CHECKING:
    from pyspark.ml.wrapper import JavaParams  # it takes a worker a second to import pyspark.ml

JVM_ERRORS = (PySparkException, Py4JError)
"""Errors of a Spark job, and of any other call into the JVM."""
GONE = (*JVM_ERRORS, AttributeError)
"""Errors of calls on a stopped SparkContext."""
SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Spark's errors, whether pyspark translates them or not."""

_JAVA = re.compile(r"\tat |\t\.\.\. \d+ more|Driver stacktrace:")


@contextmanager
def forwarding_sigterm(spark: SparkSession) -> Iterator[None]:
    """Within the block, turn SIGTERM to the JVM into a stop request, like ``sparkdl.cluster.shutdown.stoppable``.

    Under spark-submit, cluster managers and ``docker stop`` signal the JVM, which is the parent process. By default it
    would stop the SparkContext, and the gang, at once. If the JVM accepts no handler, a warning is issued.
    """
    try:
        classes, gateway = java(spark)
        signals = classes.sun.misc
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
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


def without_java_stack(error: object) -> str:
    """The text of an error with its Python traceback, but without Java's stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return "\n".join(line for line in text.partition("\n\nJVM stacktrace:")[0].splitlines() if not _JAVA.match(line))


def causes(error: PySparkException | Py4JJavaError) -> Iterator[tuple[str, str]]:
    """The SQLSTATE (or "") and the message's first line, for an error and each of its causes in Java."""
    if isinstance(error, PySparkException):
        yield error.getSqlState() or "", str(error).partition("\n")[0]
        return
    cause = error.java_exception
    while cause is not None:
        try:
            state = cause.getSqlState()
        except Py4JError:  # an exception that is not Spark's
            state = None
        yield state or "", str(cause.getMessage()).partition("\n")[0]
        cause = cause.getCause()
