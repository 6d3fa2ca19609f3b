"""Tasks of rounds and members of ensembles get GPUs of their own; the GPUs are addresses that a script announces."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark import TaskContext
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Bagging, ParallelSGD, TorchClassifier
from sparkdl.cluster.tasks import Tensors
from sparkdl.data.shard import Shard
from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.rounds import add
from sparkdl.spark import tasks
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.slots.capacity import wait_for_slots
from sparkdl.spark.slots.task_resources import TaskResources, assigned_gpus
from sparkdl.spark.slots.worker_count import choose_shards
from tests.sessions import session
from tests.spark.slots.test_task_resources import announced, message


@dataclass(frozen=True)
class Together:
    """Waits until four tasks run at a time; the note is the executor's process, the GPUs and the cores of the task."""

    folder: str

    reduce = staticmethod(add)

    def map(self, state: Any, shard: Shard) -> tuple[Tensors, Any]:
        context = TaskContext.get()
        assert context is not None
        Path(self.folder).mkdir(exist_ok=True)
        Path(self.folder, str(context.taskAttemptId())).touch()
        waiting = threading.Event()
        for _ in range(600):
            if len(os.listdir(self.folder)) >= 4:
                break
            waiting.wait(0.1)
        else:
            raise TimeoutError("four tasks never ran at a time")
        return {"rows": torch.tensor(shard.rows)}, [os.getppid(), assigned_gpus(context), context.cpus()]


def on_gpus(folder: str) -> dict[str, Any]:
    """A driver of two executors, each with four cores and two GPUs."""
    with session(folder, "local-cluster[2,4,1024]", **announced(folder)) as spark:
        wait_for_slots(spark, 8, timeout=100, report=lambda what, seconds: None)
        rows, found = spark.range(400), dict[str, Any]()
        with SparkCluster(spark, 4, task_gpus=1, task_cpus=2).map_reduce(rows, num_shards=4) as jobs:
            found["round"] = jobs.run(Together(f"{folder}/round"), {})[1]
            for all_rows in (True, False):
                members = jobs.each(Together(f"{folder}/{all_rows}"), range(4), all_rows=all_rows)
                found[f"members {all_rows}"] = [result.note for result in members]
            tasks._DIRECT = 0
            sums, found["large round"] = jobs.run(Together(f"{folder}/large"), {})
            found["rows"] = int(sums["rows"])
            spark.sparkContext.parallelize(range(8), 8).foreach(partial(_forget, jobs._key))
            found["built again"] = jobs.run(Together(f"{folder}/again"), {})[1]
        scored = rows.mapInArrow(_unchanged, rows.schema, profile=TaskResources(gpus=1.0).profile(spark))
        with SparkCluster(spark, 4, task_gpus=1, task_cpus=2).map_reduce(scored, shuffle=False) as jobs:
            nothing = Together(f"{folder}/nothing")
            found["conflict"] = [
                message(InvalidInput, lambda: jobs.run(nothing, {})),
                message(InvalidInput, lambda: [*jobs.each(nothing, range(4), all_rows=True)]),
            ]
        points = rows.select(F.array(F.rand(1).alias("x"), F.rand(2)).alias("features"), (rows.id % 2).alias("label"))
        net = TorchClassifier(model=partial(nn.Linear, 2, 2), device="cuda", epochs=1)
        in_rounds = net.copy({net.strategy: ParallelSGD(rounds=1)})
        return found | {
            "shards": [
                choose_shards(spark, requests, device=device)
                for device, requests in (
                    ("cuda", TaskResources(gpus=1.0)),
                    ("cuda", TaskResources(gpus=0.5)),
                    ("cpu", TaskResources()),
                )
            ],
            "fit in rounds": message(InvalidInput, lambda: in_rounds.fit(points)),
            "fit of members": message(InvalidInput, lambda: Bagging(base=net, numModels=2).fit(points)),
            "too many cores": message(
                ClusterUnavailable, lambda: SparkCluster(spark, 4, task_cpus=5).map_reduce(rows).__enter__()
            ),
        }


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _forget(key: str, row: int) -> None:
    from sparkdl.spark.executor_tasks import delete_files

    delete_files(key, [])


@pytest.mark.slow
def test_tasks_of_rounds_and_members_have_gpus_of_their_own(driver, tmp_path):
    found = driver(on_gpus, tmp_path, timeout=230).result
    for kind in ("round", "members True", "members False", "large round", "built again"):
        assert sorted(gpus for _, gpus, _ in found[kind]) == [["0"], ["0"], ["1"], ["1"]], kind
        assert len({(executor, *gpus) for executor, gpus, _ in found[kind]}) == 4, kind
        assert {cpus for *_, cpus in found[kind]} == {2}
    assert found["rows"] == 400
    for conflict in found["conflict"]:
        assert "Call repartition after transform" in conflict
    assert found["shards"] == [4, 8, 8]
    for kind in ("rounds", "members"):
        assert "the cluster assigned the GPU '" in found[f"fit {'in' if kind == 'rounds' else 'of'} {kind}"]
    assert "1 workers need 1 task slots at a time, but the configuration allows 0" in found["too many cores"]
