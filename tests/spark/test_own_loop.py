"""Users' own loops in Spark's barrier tasks."""

from __future__ import annotations

import pytest

from sparkdl.spark.cluster import SparkCluster
from tests.contracts.own_loop_contract import OwnLoopContract
from tests.sessions import frame


@pytest.mark.slow
class TestOwnLoopsOnSpark(OwnLoopContract):
    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, 2, timeout=60.0)  # a collective that hangs fails the test, with its place

    def make_data(self, arrays):
        return frame(arrays)
