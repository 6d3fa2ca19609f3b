"""Workers, tasks of rounds and members get GPUs of their own; the GPUs are addresses that a script announces."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn

from sparkdl import Bagging, ParallelSGD, TorchClassifier
from sparkdl.cluster.group.world import World
from sparkdl.cluster.tasks import Tensors
from sparkdl.data.shard import Shard
from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from sparkdl.rounds import add
from sparkdl.spark import task_runner as tasks
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.slots.capacity import find_slots, wait_for_slots
from sparkdl.spark.slots.task_resources import TaskResources, assigned_gpus
from sparkdl.spark.slots.worker_count import choose_shards
from tests.ml.nets import column
from tests.sessions import drive, session

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(510)]

SCRIPT = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["0", "1"]}'
"""


def requested(world: World, shard: Shard | None) -> tuple[list[str] | None, int]:
    context = TaskContext.get()
    assert context is not None
    given = context.resources().get("gpu")
    return None if given is None else list(given.addresses), context.cpus()


def message(error: type[Exception], work: Any) -> str:
    with pytest.raises(error) as raised:
        work()
    return str(raised.value)


def slots(spark: SparkSession, requests: TaskResources) -> list[int | None]:
    found = find_slots(spark, requests)
    return [found.now, found.ever]


def scored(spark: SparkSession) -> None:
    """Score on GPUs, while the ETL before it uses no GPU."""
    model = TorchModel(factory=column, weights=pack(column()), kind="regressor")._set(inputCols=["x"], device="cuda")
    model.transform(spark.range(0, 8, 1, 1).select(F.array(*[F.col("id") * 1.0] * 3).alias("x"))).collect()


def announced(folder: str) -> dict[str, str]:
    """Settings under which each executor has the GPUs that a script announces."""
    script = Path(folder, "find_gpus.sh")
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return {
        f"{part}__resource__gpu__{key}": value
        for part in ("worker", "executor")
        for key, value in (("amount", "2"), ("discoveryScript", str(script)))
    }


def gangs(spark: SparkSession) -> dict[str, Any]:
    """What gangs and stages of the ETL get."""
    manager = spark.sparkContext._jsc.sc().resourceProfileManager()
    before, one = slots(spark, TaskResources()), TaskResources(gpus=1.0)
    profiles = [one.profile(spark), TaskResources(gpus=1.0).profile(spark)]
    requests = [one, TaskResources(gpus=0.5), TaskResources(cpus=4, gpus=1.0), TaskResources(gpus=2.0)]
    return {
        "ETL": before,
        "slots": [slots(spark, each) for each in requests],
        "one profile": profiles[0].id
        == profiles[1].id
        == manager.getEquivalentProfile(profiles[0]._java_resource_profile).get().id(),
        "gangs": [
            SparkCluster(spark, 4, task_gpus=1).gang(requested),
            SparkCluster(spark, 2, task_gpus=1, task_cpus=3).gang(requested),
            SparkCluster(spark, 2).gang(requested),
        ],
        "scoring": message(PythonException, lambda: scored(spark)),
        "no PyTorch": message(InvalidInput, lambda: SparkCluster(spark, 2, device="cuda").gang(requested)),
        "capacity": list(vars(SparkCluster(spark, 2, device="cuda").capacity()).values()),
        "too many workers": message(ClusterUnavailable, lambda: SparkCluster(spark, 5, task_gpus=1).gang(requested)),
        "too many GPUs": message(InvalidInput, lambda: SparkCluster(spark, 1, task_gpus=3)),
    }


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
    """A driver of two executors, each with four cores and two GPUs, whose ETL takes none of them."""
    with session(folder, "local-cluster[2,4,1024]", **announced(folder)) as spark:
        wait_for_slots(spark, 8, timeout=100, report=lambda what, seconds: None)
        rows, found = spark.range(400), gangs(spark)
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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drive(on_gpus, tmp_path_factory.mktemp("gpus"), timeout=480).result


def test_gangs_request_gpus_and_other_stages_do_not(found):
    assert found["ETL"] == [8, 8]
    assert found["slots"] == [[4, 4], [8, 8], [2, 2], [2, 2]]
    assert found["one profile"]
    four, three_cores, plain = found["gangs"]
    assert sorted(four) == [[["0"], 1], [["0"], 1], [["1"], 1], [["1"], 1]]
    assert [cpus for _, cpus in three_cores] == [3, 3]
    assert plain == [[None, 1], [None, 1]]
    for refused in ("no PyTorch", "scoring"):  # in a task with a GPU of the fake script
        assert re.search("the cluster assigned the GPU '[01]', and the worker sees 0 GPUs", found[refused])
    assert found["capacity"] == [4, 4]
    assert "the configuration allows 4" in found["too many workers"]
    assert "taskGpus = 1. Lower numWorkers or add cores and GPUs." in found["too many workers"]
    assert "taskGpus is 3, and spark.executor.resource.gpu.amount is 2" in found["too many GPUs"]


def test_tasks_of_rounds_and_members_have_gpus_of_their_own(found):
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
