"""Spark's messages, cut to what says why."""

from __future__ import annotations

from sparkdl.spark.error_messages import first_lines

OF_A_TASK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
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


def test_an_error_in_python_is_said_without_its_frames():
    said = first_lines(Exception(OF_A_TASK))
    assert said.endswith("PythonException: ValueError: no such thing")
    assert "failed 4 times" in said
    assert "worker.py" not in said


def test_an_error_of_the_jvm_is_said_without_its_stack():
    said = first_lines(Exception(": org.apache.spark.SparkException: it is full\n\tat org.apache.X.y(X.scala:1)\n"))
    assert said == ": org.apache.spark.SparkException: it is full"


def test_a_message_has_a_limit():
    assert len(first_lines(Exception("x" * 5000))) == 1000
