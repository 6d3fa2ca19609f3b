"""Jobs of the doctor end in time, and their errors name the cause and the host."""

from __future__ import annotations

import pytest

from sparkdl.spark.diagnosis.job import cause, collect_each

LOST = "Job aborted due to stage failure: Lost task 0.1 in stage 0.0 (TID 3) (10.77.0.3 executor 1): "
STACK = "\n\tat org.apache.spark.api.python.PythonRunner.compute(PythonRunner.scala:1)\n"


MISMATCH = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            MISMATCH,
            "Python 3.10, on the driver 3.11. Set spark.pyspark.python to a Python 3.11 with sparkdl on every host.",
        ),
        (
            "No module named 'sparkdl'",
            "the executors' Python has no module sparkdl. Install sparkdl in their Python env",
        ),
        ("No module named 'sparkdl'", "or submit without spark.python.daemon.module=sparkdl.spark.python_daemon."),
        ("Traceback (most recent call last):\n  File x\n    y()\nOSError: no disk\n", "10.77.0.3: OSError: no disk"),
        ("java.io.IOException: Cannot run program", "10.77.0.3: IOException: Cannot run program"),
    ],
)
def test_cause_of_a_failed_job(message, expected):
    text = cause(RuntimeError(LOST + message + STACK), "sparkdl.spark.python_daemon")
    assert text.startswith("10.77.0.3: ")
    assert expected in text
    assert "PythonRunner" not in text


def test_job_that_hangs_is_cancelled(spark):
    def hang(rows):
        import time

        time.sleep(1000)
        return rows

    rows = spark.sparkContext.parallelize([1], 1).mapPartitions(hang)
    quick = spark.sparkContext.parallelize([1], 1)
    for limit in (0.5, 0.0):  # a limit of 0 s expires before the job begins
        assert collect_each(spark, [rows] * 2, limit, "a nap") == ([], [f"a nap did not end within {limit:g} s"] * 2)
    assert collect_each(spark, [quick, quick], 60, "a job") == ([1, 1], [])
