"""Rounds on Spark keep the contract; what is reduced on executors comes to the same bits."""

from __future__ import annotations

import pytest
import torch

from sparkdl.spark import map_reduce
from sparkdl.spark.cluster import SparkCluster
from tests.contracts.map_reduce_contract import ARRAYS, COLUMNS, LossContract, MapReduceContract, Sums
from tests.sessions import frame

pytestmark = pytest.mark.cluster


class TestSpark(MapReduceContract, LossContract):
    tries = 2  # spark.task.maxFailures of the session

    @pytest.fixture
    def cluster(self, spark):
        return SparkCluster(spark, 2)

    def make_data(self, arrays):
        return frame(arrays)

    def test_pieces_that_executors_reduce_come_to_the_same_bits(self, jobs, monkeypatch):
        whole, notes = jobs.run(Sums(large=2_000_000), {"factor": 1.5})
        monkeypatch.setattr(map_reduce, "_DIRECT", 0)
        found, others = jobs.run(Sums(large=2_000_000), {"factor": 1.5})
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
        assert others == notes

    def test_rows_stay_in_their_partitions_where_they_are_not_shuffled(self, cluster):
        data = frame(ARRAYS).repartition(5)
        with cluster.map_reduce(data, COLUMNS, shuffle=False) as jobs:
            assert len(jobs.parts) == 5
