"""Rounds without Spark keep the contract."""

from __future__ import annotations

import pytest

from sparkdl.cluster import InlineCluster, LocalCluster
from tests.contracts.map_reduce_contract import LossContract, MapReduceContract


@pytest.fixture(scope="module")
def pair():
    with LocalCluster(2) as found:
        yield found


class TestInline(MapReduceContract):
    @pytest.fixture
    def cluster(self):
        return InlineCluster()


class TestLocal(MapReduceContract, LossContract):
    @pytest.fixture
    def cluster(self, pair):
        return pair

    def test_a_gang_and_rounds_take_turns(self, cluster):
        assert cluster.gang(lambda world, part: world.rank) == [0, 1]
