"""Tasks of a gang request cores and GPUs of their own; the GPUs are addresses that a script announces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkdl.cluster.group.world import World
from sparkdl.cluster.protocol import Capacity
from sparkdl.data.shard import Shard
from sparkdl.errors import ClusterUnavailable, InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.model import TorchModel
from sparkdl.spark.cluster import SparkCluster
from sparkdl.spark.slots.capacity import find_slots, wait_for_slots
from sparkdl.spark.slots.task_resources import TaskResources
from tests.ml.nets import column
from tests.sessions import session

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
    model.transform(spark.range(8).select(F.array(*[F.col("id") * 1.0] * 3).alias("x"))).collect()


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


def on_gpus(folder: str) -> dict[str, Any]:
    """A driver of two executors, each with four cores and two GPUs, whose ETL takes none of them."""
    with session(folder, "local-cluster[2,4,1024]", **announced(folder)) as spark:
        wait_for_slots(spark, 8, timeout=100, report=lambda what, seconds: None)
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
            "too many workers": message(
                ClusterUnavailable, lambda: SparkCluster(spark, 5, task_gpus=1).gang(requested)
            ),
            "too many GPUs": message(InvalidInput, lambda: SparkCluster(spark, 1, task_gpus=3)),
        }


@pytest.mark.slow
def test_gangs_request_gpus_and_other_stages_do_not(driver, tmp_path):
    found = driver(on_gpus, tmp_path, timeout=230).result
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


def test_requests_without_effect_make_no_profile(spark):
    assert TaskResources.of_training(spark, "cuda", cpus=1, gpus=None).profile(spark) is None
    assert find_slots(spark, TaskResources(cpus=1)) == find_slots(spark)
    with pytest.raises(InvalidInput, match=r"taskGpus is 1.5; expected a whole number, or a fraction below 1"):
        TaskResources(gpus=1.5)
    with pytest.raises(ClusterUnavailable, match=r"the configuration allows 0: .*taskCpus = 2"):
        SparkCluster(spark, 1, task_cpus=2).gang(requested)
    assert SparkCluster(spark, 1, task_cpus=2).capacity() == Capacity(0, 0)


def test_local_mode_has_no_profiles(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "master", "local[4]")
    with pytest.raises(InvalidInput, match=r"the master is 'local\[4\]', which has no resource profiles"):
        TaskResources.of_training(spark, "cpu", cpus=2, gpus=None)
