"""A gang on Spark that begins with one member becomes one of two when the second slot is there."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkdl.cluster import elastic
from sparkdl.cluster.protocol import Capacity
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.emit import record

pytestmark = pytest.mark.timeout(240)


class Flickering(SparkCluster):
    """There is one slot, and when it is asked again as many as there are."""

    looks = 0

    def capacity(self) -> Capacity:
        self.looks += 1
        return Capacity(1, None) if self.looks == 1 else super().capacity()


def rows(world: Any, part: Any) -> tuple[int, int]:
    """The attempt and the part's rows; one member alone is at an epoch's end again and again."""
    while world.size == 1:
        record("checkpoint", clock=world.clock, trouble=[], pinned=True)
        threading.Event().wait(0.05)
    return world.attempt, part.rows


@pytest.mark.chaos
def test_a_gang_of_one_becomes_one_of_two(spark, monkeypatch):
    monkeypatch.setattr(elastic, "_LOOK", 0.2)
    supervisor = Supervisor(Flickering(spark, 2), min_size=1, elastic_timeout=0, max_restarts=0)
    found = supervisor.gang(rows, spark.range(20), ["id"])
    assert supervisor.sizes == [1, 2]
    assert supervisor.failures == []
    assert [attempt for attempt, _ in found] == [1, 1]
    assert sum(count for _, count in found) == 20
    assert SparkCluster(spark, 2).gang(lambda world, part: world.size) == [2, 2]  # nothing holds a slot
