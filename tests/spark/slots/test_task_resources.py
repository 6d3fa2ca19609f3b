"""Requests of the tasks of a gang, without GPUs; tests/spark/slots/test_task_gpus.py has some."""

from __future__ import annotations

import pytest

from sparkdl.cluster.protocol import Capacity
from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.slots.capacity import find_slots
from sparkdl.spark.slots.task_resources import TaskResources
from tests.contracts import work


def test_requests_without_effect_make_no_profile(spark):
    assert TaskResources.of_training(spark, "cuda", cpus=1, gpus=None).profile(spark) is None
    assert find_slots(spark, TaskResources(cpus=1)) == find_slots(spark)
    with pytest.raises(InvalidInput, match=r"taskGpus is 1.5; expected a whole number, or a fraction below 1"):
        TaskResources(gpus=1.5)
    with pytest.raises(ClusterUnavailable, match=r"the configuration allows 0: .*taskCpus = 2"):
        SparkCluster(spark, 1, task_cpus=2).gang(work.who)
    assert SparkCluster(spark, 1, task_cpus=2).capacity() == Capacity(0, 0)


def test_local_mode_has_no_profiles(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "master", "local[4]")
    with pytest.raises(InvalidInput, match=r"the master is 'local\[4\]', which has no resource profiles"):
        TaskResources.of_training(spark, "cpu", cpus=2, gpus=None)
