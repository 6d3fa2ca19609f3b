"""The same fit in a session of any kind, for comparison."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from torch import Tensor, nn

from sparkdl import TorchClassifier
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
    """A model of 20 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(len(NAMES), 2)
        self.table = nn.Embedding(5_000_000, 1)

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
