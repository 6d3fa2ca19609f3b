"""Calls into the JVM: paths, signals, messages."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from sparkdl.cluster.shutdown import forget_stop, stop_requested
from sparkdl.spark.error_messages import first_lines
from sparkdl.spark.session import forwarding_sigterm, qualify

PYTHON = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 1.0 (TID 3) (host executor 0): org.apache.spark.api.python.PythonException: Traceback \
(most recent call last):
  File "worker.py", line 1245, in main
    process()
    ~~~~~~~^^
  File "work.py", line 3, in run
    raise ValueError("no such thing")
ValueError: no such thing

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:572)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2844)
"""
JAVA = ": org.apache.spark.SparkException: it is full\n\tat org.apache.X.y(X.scala:1)\n"


def test_messages_have_no_frames_and_no_stack():
    shown = first_lines(Exception(PYTHON))
    assert shown.endswith("PythonException: ValueError: no such thing")
    assert "failed 4 times" in shown
    assert "worker.py" not in shown
    assert first_lines(Exception(JAVA)) == ": org.apache.spark.SparkException: it is full"
    assert len(first_lines(Exception("x" * 5000))) == 1000


def test_paths_are_qualified(spark, tmp_path):
    assert qualify(spark, str(tmp_path)) == f"file:{tmp_path}"
    assert qualify(spark, f"file://{tmp_path}/a b") == f"file:{tmp_path}/a b"


def test_sigterm_to_jvm_is_request_in_this_process(spark):
    signals = spark.sparkContext._jvm.sun.misc
    try:
        for _ in range(2):  # the first block restores the JVM's handler
            with forwarding_sigterm(spark):
                getattr(signals.Signal, "raise")(signals.Signal("TERM"))
                while stop_requested() is None:
                    threading.Event().wait(0.01)
            assert stop_requested() == "Spark's JVM got SIGTERM"
            forget_stop()
    finally:
        forget_stop()


def test_missing_jvm_warns():
    class Remote:
        @property
        def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
            raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

    with pytest.warns(UserWarning, match="SIGTERM to the JVM is not trapped"), forwarding_sigterm(Remote()):
        assert stop_requested() is None
