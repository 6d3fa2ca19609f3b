"""An application that prints the GPUs of its gang, and keeps its executor until another application has its own."""

from __future__ import annotations

import sys

from pyspark import TaskContext
from pyspark.sql import SparkSession

from sparkdl.cluster.group.world import World
from sparkdl.data.shard import Shard
from sparkdl.spark.cluster import SparkCluster


def addresses(world: World, shard: Shard | None) -> list[str]:
    context = TaskContext.get()
    assert context is not None
    return list(context.resources()["gpu"].addresses)


if __name__ == "__main__":
    print(SparkCluster(SparkSession.builder.getOrCreate(), 1, task_gpus=1).gang(addresses), flush=True)
    with open(sys.argv[1], sys.argv[2]):  # opens once the other application opens its end
        pass
