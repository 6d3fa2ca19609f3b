"""Shortens Spark's error messages, and names the errors of users behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from sparkdl.errors import ClusterUnavailable, InvalidInput, SessionLost, Stopped

_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\] Job \d+ cancelled (.*?)\.?(?: SQLSTATE.*)?$", re.MULTILINE)
_OPERATION_CANCELLED = "[OPERATION_CANCELED]"  # Spark Connect's spelling
_LOST = re.compile(  # of Spark Connect's client
    r"<_\w+ of RPC that terminated with:\s+status = StatusCode\.UNAVAILABLE"
    r"|\[(INVALID_HANDLE\.(SESSION|OPERATION)_\w+|RESPONSE_ALREADY_RECEIVED|RETRIES_EXCEEDED)\]"
)
_LINES, _MOST = 3, 1000  # lines and characters of a message
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n?)*")  # frames are indented


def first_lines(error: Exception) -> str:
    """The cause in Spark's message without stacks; of a Python traceback only its last line."""
    lines = [line.strip() for line in _TRACEBACK.sub("\n", str(error)).splitlines()]
    causes = [line for line in lines if line and not line.startswith("at ") and "Driver stacktrace" not in line]
    return " ".join(causes[:_LINES])[:_MOST]


def cancellation(error: Exception) -> Stopped | None:
    """The error of a run whose Spark job the user cancelled, by its group, tag or number, or in the Spark UI."""
    cancelled = _CANCELLED.search(str(error))
    if cancelled is None and _OPERATION_CANCELLED not in str(error):
        return None
    how = "by its tag, its operation or its session" if cancelled is None else cancelled[1]
    return Stopped(
        f"the user cancelled a Spark job of this run ({how}). The same fit resumes from its newest "
        "checkpoint, if it has one."
    )


@contextmanager
def losing_session() -> Iterator[None]:
    """Within the block, raise SessionLost for the errors that follow the end of a server of Spark Connect."""
    try:
        yield
    except PySparkException as error:
        if not _LOST.match(str(error)):
            raise
        raise SessionLost(
            "the server of Spark Connect has gone, or it ended this session. Once the server runs, make a session by "
            "SparkSession.builder.remote(...).create(), and call fit again: with the same runDir it resumes from its "
            "newest checkpoint."
        ) from error


def invalid_setting(error: Exception) -> InvalidInput | None:
    """The error of results above the driver's limit, or of a stage with two resource profiles, as after scoring."""
    if "spark.driver.maxResultSize" in str(error):
        return InvalidInput(f"{first_lines(error)} Set it higher, or to 0 for no limit, or return less.")
    if "Multiple ResourceProfiles" not in str(error):
        return None
    return InvalidInput(
        "the data comes from a stage with a resource profile, such as transform on GPUs, and the tasks request other "
        "cores or GPUs. Call repartition after transform, or give taskCpus and taskGpus the values of that profile."
    )


def other_python(error: Exception) -> ClusterUnavailable | None:
    """The error behind Spark's if executors run another minor version of Python."""
    versions = re.search(r"Python in worker has different version: (\S+) than that in driver: (\d+\.\d+)", str(error))
    if versions is None:
        return None
    return ClusterUnavailable(
        f"the executors run Python {versions[1]}, and this process Python {versions[2]}; expected the same minor "
        "version. Set spark.pyspark.python to a Python that has it, with sparkdl, on every host."
    )


def missing_sparkdl(error: Exception, daemon: str) -> ClusterUnavailable | None:
    """The error behind Spark's if executors lack sparkdl; ``daemon`` is the module of the Python daemon, if set."""
    missing = re.search(r"No module named '?(sparkdl[\w.]*)", str(error))
    if missing is None:
        return None
    without = f", or submit without spark.python.daemon.module={daemon}" if daemon.startswith("sparkdl") else ""
    return ClusterUnavailable(
        f"the executors' Python has no module {missing[1]}. Install sparkdl in their Python environment{without}."
    )
