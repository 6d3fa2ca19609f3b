"""Gangs, models and errors in a session of Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import SparkSession

from sparkdl import EnsembleModel, ParallelSGD, TorchModel, TorchTuner
from sparkdl.cluster.cancellation import CancellationToken
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.errors import ClusterUnavailable, InvalidInput, SparkdlError, Stopped, WorkerFailed, WorkerLost
from sparkdl.io.weights_file import WeightsFile
from sparkdl.spark.cluster import SparkCluster
from sparkdl.telemetry.event import Event
from tests.connect.fits import ROWS, Fails, Large, classifier, digests, fitted, pipeline, rows
from tests.contracts import work
from tests.contracts.cluster_contract import ClusterContract
from tests.sessions import ROOT, conf, frame

pytestmark = pytest.mark.slow


class TestConnectCluster(ClusterContract):
    """With a channel, whose events the contract asks for."""

    @pytest.fixture
    def cluster(self, spark: SparkSession) -> Iterator[SparkCluster]:
        with conf(spark, "spark.sparkdl.driver.host", "127.0.0.1"):
            yield SparkCluster(spark, 2, timeout=60.0)

    def make_data(self, arrays: dict[str, np.ndarray]) -> Any:
        return frame(arrays)


# ---- fit and transform -----------------------------------------------------------------------------------------------


def test_weights_and_predictions_are_those_of_a_classic_session(server: Any, spark: SparkSession) -> None:
    assert fitted(spark) == server.call(fitted)


def test_run_directory_has_checkpoints_and_events(spark: SparkSession, tmp_path: Any) -> None:
    data, run = rows(spark), str(tmp_path / "run")
    first = classifier(runDir=run, epochs=1).fit(data)
    assert {"checkpoints", "events", "history.json"} <= {*os.listdir(run)}
    resumed = classifier(runDir=run).fit(data)
    assert resumed.history[:1] == first.history
    assert digests(resumed, data) == digests(classifier().fit(data), data)


def test_pipeline_and_cross_validator_of_pyspark(spark: SparkSession, tmp_path: Any) -> None:
    stages = pipeline()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    grid = ParamGridBuilder().addGrid(stages.getStages()[1].getParam("learningRate"), [1e-6, 0.5]).build()
    validator = CrossValidator(
        estimator=stages, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=1, seed=0
    )
    model = validator.fit(rows(spark))
    assert model.avgMetrics[1] > max(model.avgMetrics[0], 0.8)
    model.save(str(tmp_path / "model"))
    loaded = CrossValidatorModel.load(str(tmp_path / "model"))
    assert loaded.avgMetrics == model.avgMetrics
    assert loaded.transform(rows(spark)).where("prediction = label").count() > 0.8 * ROWS


def test_large_model_leaves_nothing_on_the_server(spark: SparkSession, monkeypatch: Any) -> None:
    monkeypatch.setattr(spark, "addArtifacts", lambda *_, **__: pytest.fail("Spark would list the file for ever"))
    data = rows(spark)
    model = classifier(model=Large, modelArgs={}, epochs=1, optimizer="sgd", batchSize=ROWS).fit(data)
    assert len({model.transform(data).where("prediction = label").count() for _ in range(2)}) == 1


def test_weights_that_no_query_carries_stay_in_their_file(spark: SparkSession, tmp_path: Any, monkeypatch: Any) -> None:
    data, path = rows(spark), str(tmp_path / "model")
    model = classifier(model=Large, modelArgs={"rows": 50_000}, epochs=1).fit(data)
    model.save(path)
    in_memory = TorchModel.load(path)
    monkeypatch.setattr("sparkdl.spark.session.connect._MOST_BYTES", 200_000)
    with pytest.raises(InvalidInput, match=r"the model has 0 MB, .* Set runDir .* or save the model where executors"):
        in_memory.transform(data)
    in_file = TorchModel.load(path)
    assert [type(one._trained.weights) for one in (in_memory, in_file)] == [bytes, WeightsFile]
    scored = in_file.transform(data).orderBy("id").select("probability").collect()
    monkeypatch.undo()
    assert scored == model.transform(data).orderBy("id").select("probability").collect()
    monkeypatch.setattr("sparkdl.spark.session.connect._MOST_BYTES", 450_000)
    assert in_memory.transform(data).count() == ROWS
    ensemble = EnsembleModel([in_memory, TorchModel.load(path), TorchModel.load(path)], rule="soft")
    with pytest.raises(InvalidInput, match=r"the model has 1 MB, .* An ensemble of smaller members.* classic session"):
        ensemble.transform(data)


@pytest.mark.parametrize("kind", ["gang", "module", "rounds", "search"])
def test_weights_that_no_query_carries_are_in_a_file_of_the_run_directory(
    spark: SparkSession, tmp_path: Any, monkeypatch: Any, kind: str
) -> None:
    large: dict[str, Any] = {"model": Large, "modelArgs": {"rows": 50_000}, "epochs": 1}
    trial = classifier(numWorkers=1, validationFraction=0.2, **large)
    search = TorchTuner(estimator=trial, paramSpace={"dropLast": [False]})
    rounds = classifier(strategy=ParallelSGD(rounds=1), **large)
    module = classifier(model=Large(50_000), modelArgs={}, epochs=1)  # pickled, it has its own weights
    estimator: Any = {"gang": classifier(**large), "module": module, "rounds": rounds, "search": search}[kind]
    data, run = rows(spark), tmp_path / "run"
    expected = estimator.fit(data).transform(data).orderBy("id").select("probability").collect()
    limit = 300_000 if kind == "module" else 200_000
    monkeypatch.setattr("sparkdl.spark.session.connect._MOST_BYTES", limit)
    models = [estimator.setRunDir(str(run)).fit(data) for _ in range(2)]
    [weights] = run.rglob("weights-*.safetensors")
    assert {getattr(model, "bestModel", model)._trained.weights.uri for model in models} == {str(weights)}
    assert models[0].transform(data).orderBy("id").select("probability").collect() == expected


def test_channel_opens_at_an_address_that_executors_reach(spark: SparkSession, cluster: SparkCluster) -> None:
    events: list[Event] = []
    with conf(spark, "spark.sparkdl.driver.host", "127.0.0.1"):
        cluster.gang(work.who, listener=events.append)
    assert {event.rank for event in events if event.kind == "started"} == {0, 1}
    events.clear()
    cluster.gang(work.who, listener=events.append)
    assert {event.kind for event in events} - {"tasks"} == {"outcome"}


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_mistake_in_the_model_is_tried_once(spark: SparkSession, caplog: Any) -> None:
    with pytest.raises(WorkerFailed, match="ValueError: a mistake in the model") as caught:
        classifier(model=Fails, modelArgs={}).fit(rows(spark))
    assert (caught.value.attempt, caught.value.step) == (0, 0)
    assert "raise ValueError" in str(caught.value.trace)
    assert "the next starts" not in caplog.text


@pytest.mark.chaos
def test_gang_starts_again_after_a_lost_worker(cluster: SparkCluster) -> None:
    def dies_once(world: Any, shard: Any) -> int:
        if world.attempt == 0 and world.rank == 1:
            os.kill(os.getpid(), 9)
        world.all_gather_json("alive", {})
        return int(world.attempt)

    supervisor = Supervisor(cluster, max_restarts=1, back_off=0.1)
    assert supervisor.gang(dies_once) == [1, 1]
    (failure,) = supervisor.failures
    assert isinstance(failure, WorkerLost)
    assert (failure.rank, failure.context.stage) == (1, "work")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("spark.sparkdl.test", r"5 workers need 5 task slots .* the executors offer 2\."),
        ("spark.sql.leafNodeDefaultParallelism", "too few: 5 workers need 5 at a time"),  # it hides the slots
    ],
)
def test_too_few_slots_raise_after_the_timeout(setting: str, message: str, spark: SparkSession) -> None:
    with conf(spark, setting, "7"), pytest.raises(ClusterUnavailable, match=message):
        SparkCluster(spark, 5, resource_timeout=0.5).gang(work.who)


# ---- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["user", "token"])
def test_cancelled_gang_frees_its_slots(by: str, spark: SparkSession, cluster: SparkCluster, tmp_path: Any) -> None:
    pipes, token = [str(tmp_path / f"pipe{rank}") for rank in range(2)], CancellationToken()
    for pipe in pipes:
        os.mkfifo(pipe)

    def waits(world: Any, shard: Any) -> str:
        with open(pipes[world.rank]) as pipe:
            return pipe.read()

    cancel: dict[str, Callable[[], object]] = {
        "user": spark.interruptAll,
        "token": lambda: token.end(Stopped("enough")),
    }
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cluster.gang, waits, cancellation=token)
        ends = [os.open(pipe, os.O_WRONLY) for pipe in pipes]  # returns once the worker reads
        try:
            cancel[by]()
            with pytest.raises(SparkdlError) as caught:
                running.result(60)
        finally:
            for end in ends:
                os.close(end)
    assert isinstance(caught.value, Stopped)
    assert ("the user cancelled a Spark job" if by == "user" else "enough") in str(caught.value)
    assert [worker["rank"] for worker in cluster.gang(work.who)] == [0, 1]


# ---- pyspark-client --------------------------------------------------------------------------------------------------

_WITHOUT_JVM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "py4j" or name == "pyspark.core" or name.startswith("pyspark.core."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from pyspark.sql import SparkSession
from tests.connect.fits import fitted

print(*fitted(SparkSession.builder.remote(sys.argv[1]).getOrCreate()))
"""


def test_client_needs_neither_py4j_nor_the_core_of_pyspark(server: Any, spark: SparkSession) -> None:
    client = subprocess.run(
        [sys.executable, "-c", _WITHOUT_JVM, server.url],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert client.returncode == 0, client.stderr
    assert client.stdout.split() == fitted(spark)
