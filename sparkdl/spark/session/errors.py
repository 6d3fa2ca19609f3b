"""Errors of Spark jobs and of calls into the JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.errors import PySparkException

try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # pyspark-client, whose calls reach no JVM of this host
    Py4JError = Py4JJavaError = type("Py4JError", (Exception,), {})

JVM_ERRORS = (PySparkException, Py4JError)
"""Errors of a Spark job, and of any other call into the JVM."""
GONE = (*JVM_ERRORS, AttributeError)
"""Errors of calls on a stopped SparkContext."""
SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Spark's errors, whether pyspark translates them or not."""

_JAVA = re.compile(r"\tat |\t\.\.\. \d+ more|Driver stacktrace:")


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
