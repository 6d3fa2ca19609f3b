"""Calls into the JVM: paths and signals."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from sparkdl.cluster.shutdown import forget_stop, stop_requested
from sparkdl.spark.jvm import forwarding_sigterm, qualify

pytestmark = pytest.mark.timeout(240)


def test_paths_are_what_spark_makes_of_them(spark, tmp_path):
    assert qualify(spark, str(tmp_path)) == f"file:{tmp_path}"
    assert qualify(spark, f"file://{tmp_path}/a b") == f"file:{tmp_path}/a b"


def test_sigterm_to_the_jvm_is_a_request_in_this_process(spark):
    signals = spark.sparkContext._jvm.sun.misc
    try:
        for _ in range(2):  # the second block finds the JVM as it was
            with forwarding_sigterm(spark):
                getattr(signals.Signal, "raise")(signals.Signal("TERM"))
                while stop_requested() is None:
                    threading.Event().wait(0.01)
            assert stop_requested() == "Spark's JVM got SIGTERM"
            forget_stop()
    finally:
        forget_stop()


def test_where_there_is_no_jvm_a_warning_says_so():
    class Remote:
        @property
        def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
            raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

    with pytest.warns(UserWarning, match="SIGTERM to the JVM is not trapped"), forwarding_sigterm(Remote()):
        assert stop_requested() is None
