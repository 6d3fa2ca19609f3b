"""The same fit in a session of any kind, for comparison."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from sparkdl import (
    LBFGS,
    Bagging,
    Boosting,
    ConsensusADMM,
    FederatedAveraging,
    ParallelSGD,
    TorchClassifier,
    TorchTuner,
)
from sparkdl.ml.model import TorchModel

NAMES = [f"x{index}" for index in range(4)]
ROWS = 300


def rows(spark: SparkSession) -> DataFrame:
    """Two classes that a plane separates."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, len(NAMES)))
    columns = {name: x[:, index] for index, name in enumerate(NAMES)}
    return spark.createDataFrame(pd.DataFrame({"id": np.arange(ROWS), **columns, "label": (x.sum(1) > 0).astype(int)}))


def classifier(**params: Any) -> TorchClassifier:
    settings = {
        "model": nn.Linear,
        "modelArgs": {"in_features": len(NAMES), "out_features": 2},
        "inputCols": NAMES,
        "assembleInputs": True,
        "idCol": "id",
        "numWorkers": 2,
        "epochs": 2,
        "batchSize": 64,
        "learningRate": 0.05,
    }
    return TorchClassifier(**settings | params)


def digests(model: TorchModel, data: DataFrame) -> list[str]:
    """Hashes of the weights and of the predictions."""
    weights = model.module().weight.detach().numpy().tobytes()
    scored = model.transform(data).orderBy("id").select("probability", "prediction").collect()
    return [hashlib.sha256(one).hexdigest() for one in (weights, repr(scored).encode())]


def fitted(spark: SparkSession) -> list[str]:
    data = rows(spark)
    return digests(classifier().fit(data), data)


def fitted_in_tasks(spark: SparkSession) -> dict[str, list[str]]:
    """Digests of what trains in tasks."""
    data = rows(spark).withColumn("client", F.col("id") % 3)
    member = classifier(numWorkers=1, epochs=1)
    federated = FederatedAveraging("client", rounds=2, client_fraction=0.7, batch_size=16)
    strategies = {"L-BFGS": LBFGS(), "federated": federated, "ADMM": ConsensusADMM()}
    found = {name: digests(classifier(strategy=one, maxRounds=2).fit(data), data) for name, one in strategies.items()}
    ensembles: dict[str, Any] = {
        "bagging": Bagging(base=member, numModels=3, seed=1),
        "partitions": Bagging(base=member, partitioned=True, seed=1),
        "boosting": Boosting(base=member, numModels=2, seed=1),
    }
    for name, ensemble in ensembles.items():
        scored = ensemble.fit(data.repartition(2, "id")).transform(data).orderBy("id")
        found[name] = [repr(scored.select("probability", "prediction").collect())]
    metrics: Any = classifier(epochs=1).fit(data).evaluate(data)
    measured = [f"{metrics.log_loss:.12f} {metrics.auc:.12f}"]  # sums of metrics follow the order of partitions
    tuner = TorchTuner(estimator=classifier(numWorkers=1, validationFraction=0.2), paramSpace={"batchSize": [8, 32]})
    return found | {"evaluate": measured, "search": digests(tuner.fit(data).bestModel, data)}


def begun(spark: SparkSession, directory: Any = None) -> str:
    """Half of a gang and half of rounds in a run's directory each; the folder of both."""
    folder = str(directory or tempfile.mkdtemp(dir=os.environ["SPARK_LOCAL_DIRS"]))
    for name, estimator in halves(1).items():
        estimator.setRunDir(f"{folder}/{name}").fit(rows(spark))
    return folder


def halves(count: int) -> dict[str, TorchClassifier]:
    rounds = classifier(strategy=ParallelSGD(rounds=2 * count, shard_batch_size=16))
    return {"gang": classifier(epochs=2 * count), "rounds": rounds}


def resumed(spark: SparkSession, directory: str) -> dict[str, list[str]]:
    """Digests of both fits, which resume if the directory has them."""
    data = rows(spark)
    return {
        name: digests(estimator.setRunDir(f"{directory}/{name}").fit(data), data)
        for name, estimator in halves(2).items()
    }


def resumed_from_the_client(spark: SparkSession) -> dict[str, list[str]]:
    [directory] = Path(os.environ["SPARK_LOCAL_DIRS"]).glob("*/of the client")
    return resumed(spark, str(directory))


def pipeline() -> Pipeline:
    """A pipeline with a stage of pyspark.ml."""
    features: dict[str, Any] = {"inputCols": ["features"], "assembleInputs": False, "epochs": 1}
    return Pipeline(stages=[VectorAssembler(inputCols=NAMES, outputCol="features"), classifier(**features)])


def resaved_pipeline(spark: SparkSession, path: str, other: str | None) -> list[str]:
    """Load a saved pipeline, and save it at another path; return the digests of its model."""
    model: Any = PipelineModel.load(path)
    if other is not None:
        model.save(other)
    return digests(model.stages[1], model.stages[0].transform(rows(spark)))


class Plane(nn.Linear):
    """A linear classifier with a name for configurations."""

    def __init__(self) -> None:
        super().__init__(len(NAMES), 2)


class Fails(nn.Module):
    """A model with a mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(len(NAMES), 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("a mistake in the model")
        return self.layer(x)


class Large(nn.Module):
    """A model of 40 MB, or of 4 bytes for each row."""

    def __init__(self, rows: int = 10_000_000) -> None:
        super().__init__()
        self.layer = nn.Linear(len(NAMES), 2)
        self.table = nn.Embedding(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@dataclass(frozen=True)
class Holds:
    """A callback that holds rank 0 after the third step of a run: once, until the attempt knows that it shall stop.

    A pipe tells the test that the step is done.
    """

    pipe: str

    def on_step(self, run: Any) -> None:
        if (run.rank, run.clock.step) != (0, 3):
            return
        with open(self.pipe, "w") as pipe:
            pipe.write("held")
        polls = [thread for thread in threading.enumerate() if thread.name == "sparkdl-stops"]
        for thread in polls:
            thread.join()


def held(url: str, directory: str, pipe: str) -> None:
    """A client whose gang holds."""
    spark = SparkSession.builder.remote(url).getOrCreate()
    classifier(runDir=directory, checkpointInterval=1, callbacks=[Holds(pipe)]).fit(rows(spark))
