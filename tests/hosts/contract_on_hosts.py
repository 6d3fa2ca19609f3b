"""The contract of clusters, for a driver on one of several hosts: ``test_two_hosts.py`` has such a one run it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sparkdl.spark.cluster import SparkCluster
from tests.contracts.cluster_contract import ClusterContract
from tests.sessions import frame


class TestSparkClusterOnTwoHosts(ClusterContract):
    @pytest.fixture
    def cluster(self):
        return SparkCluster(SparkSession.active(), 2)

    def make_data(self, arrays):
        return frame(arrays)
