"""The contract of clusters, on the master that SPARKDL_PLACE tells of; ``test_two_hosts.py`` runs it on such a host."""

from __future__ import annotations

import json
import os

import pytest

from sparkdl.spark.cluster import SparkCluster
from tests.cluster.standalone import Place
from tests.contracts.cluster_contract import ClusterContract
from tests.sessions import frame


@pytest.fixture(scope="session")
def spark():
    """The session of this process: an executor on each of two hosts."""
    with Place(**json.loads(os.environ["SPARKDL_PLACE"])).session(2) as found:
        yield found


class TestSparkClusterOnTwoHosts(ClusterContract):
    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, 2)

    def make_data(self, arrays):
        return frame(arrays)
