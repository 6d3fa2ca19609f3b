"""A Python worker that Spark hands from task to task."""

from __future__ import annotations

import gc

from sparkdl import SparkCluster
from sparkdl.spark.python_worker import freeze_imports


def test_outside_a_task_garbage_is_left_alone():
    frozen = gc.get_freeze_count()
    freeze_imports.__wrapped__()
    assert gc.get_freeze_count() == frozen


def frozen(world, part):
    """How many objects the collector does not look at, and how many it does."""
    return gc.get_freeze_count(), len(gc.get_objects())


def test_the_collector_does_not_look_at_what_a_member_imported(spark):
    for spared, looked_at in SparkCluster(spark, 2).gang(frozen):
        assert spared > 100_000
        assert looked_at < spared / 2
