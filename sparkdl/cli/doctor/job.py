"""Jobs of the diagnosis: each has a time limit, and its error names the cause instead of Java's stack."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.shutdown import POLL
from sparkdl.errors import ClusterUnavailable
from sparkdl.spark.error_messages import first_lines, missing_sparkdl
from sparkdl.spark.job_watch import tagged
from sparkdl.spark.session import session_of, setting
from sparkdl.spark.session.errors import JVM_ERRORS

_PLACE = re.compile(r"\(TID \d+\) \((\S+) executor \S+\): (?:[a-z]\w*\.)*(.*)")  # host, and the error without package
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)")  # the line after the frames
_PYTHON = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+)")


@contextmanager
def deadline(spark: SparkSession, seconds: float, what: str) -> Iterator[None]:
    """Cancel the block's jobs after ``seconds``.

    Raises:
        ClusterUnavailable: the jobs were cancelled, or Spark failed them; the message names the cause.
    """
    session, tag, expired = session_of(spark), f"sparkdl-{uuid.uuid4().hex}", threading.Event()

    def watch(ended: threading.Event) -> None:
        if ended.wait(seconds):
            return
        expired.set()
        while not ended.is_set():  # a job may begin after a cancellation
            session.cancel(tag)
            ended.wait(POLL)

    try:
        with tagged(session, tag, watch), session.described(f"sparkdl doctor: {what}"):
            yield
    except Exception as error:
        if expired.is_set():
            raise ClusterUnavailable(f"{what} did not end within {seconds:g} s") from error
        if not isinstance(error, JVM_ERRORS):
            raise
        raise ClusterUnavailable(cause(error, setting(spark, "spark.python.daemon.module"))) from error


def collect_each(
    spark: SparkSession, jobs: Sequence[Callable[[], list[Any]]], seconds: float, what: str
) -> tuple[list[Any], list[str]]:
    """Run jobs of one task at the same time: all their rows, and the errors of jobs.

    The executor of such a job gets it from the driver. Executors of a common job also get parts of it from each other,
    and hang for minutes if they cannot connect.
    """

    def collect(job: Callable[[], list[Any]]) -> tuple[list[Any], str]:
        try:
            with deadline(spark, seconds, what):
                return job(), ""
        except ClusterUnavailable as error:
            return [], error.message

    with ThreadPoolExecutor(len(jobs)) as pool:
        results = [*pool.map(collect, jobs)]
    return [row for part_rows, _ in results for row in part_rows], [error for _, error in results if error]


def cause(error: Exception, daemon: str) -> str:
    """The cause in Spark's error, what to do about it, and the host; ``daemon`` is the module of the Python daemon."""
    text, place = str(error), _PLACE.search(str(error))
    where = f"{place[1]}: " if place else ""
    if (lacking := missing_sparkdl(error, daemon)) is not None:
        return f"{where}{lacking.message}"
    if versions := _PYTHON.search(text):
        return (
            f"{where}Python {versions[1]}, on the driver {versions[2]}. Set spark.pyspark.python to a Python "
            f"{versions[2]} with sparkdl on every host."
        )
    raised = _RAISED.findall(text)
    if raised:
        return f"{where}{raised[-1]}"
    return f"{where}{place[2] if place else first_lines(error)}"
