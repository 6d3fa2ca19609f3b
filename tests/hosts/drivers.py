"""What a driver on the first of several hosts calls in its session; arguments and results travel as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import TorchModel, TorchRegressor
from sparkdl.cluster.supervisor import Supervisor
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput, WorkerFailed
from sparkdl.spark.cluster import SparkCluster
from tests.chaos import runs
from tests.contracts import work
from tests.faults import Fault, rounds
from tests.hosts import workers
from tests.hosts.hosts import until
from tests.ml import nets
from tests.sessions import frame

SILENCE = 5.0
"""Seconds without a heartbeat after which a worker counts as lost."""


def meet() -> dict[str, Any]:
    """A gang that only meets, and one whose rank 1 fails."""
    cluster = SparkCluster(SparkSession.active(), 2)
    peers = cluster.gang(workers.peers)
    with pytest.raises(WorkerFailed) as caught:
        cluster.gang(work.Fails(1, ValueError("the milk is sour")))
    return {"workers": peers, "failed": [caught.value.rank, caught.value.host]}


def fit(folder: str, *fault: Any) -> dict[str, Any]:
    """Train, or resume, ``tests.chaos.runs``; ``fault`` has the fields of a ``Fault``."""
    Path(folder).mkdir(exist_ok=True)
    spark, table = SparkSession.active(), runs.table()
    x = table["x"].cast(pa.list_(pa.float32()))
    numbered = table.set_column(0, "x", x).append_column("number", pa.array(range(runs.ROWS)))
    supervisor = Supervisor(SparkCluster(spark, 2), back_off=0.1, heartbeat_timeout=SILENCE)
    trained = runs.fit(
        supervisor,
        Path(folder),
        *([Fault(*fault)] if fault else []),
        data=spark.createDataFrame(numbered),
        reads=replace(runs.columns(), row_id=InputColumn("number", "int64")),
    )
    return {
        "weights": hashlib.sha256(trained[0].weights).hexdigest(),
        "history": repr(runs.untimed(trained[0].history)),
        "failures": [[type(error).__name__, error.rank, error.host, str(error)] for error in supervisor.failures],
    }


def regress(run: str, data: str, model: str) -> Any:
    """Train a regressor on Parquet and save its model: the predictions, or why its directory is refused."""
    spark = SparkSession.active()
    x = np.random.default_rng(0).normal(size=(40, 3))
    frame({"row": np.arange(40), "x": x, "y": x.sum(1)}).write.mode("overwrite").parquet(data)
    regressor = TorchRegressor(
        model=nets.column,
        inputCols=["x"],
        labelCol="y",
        idCol="row",
        numWorkers=2,
        batchSize=10,
        runDir=run,
        checkpointInterval=2,
    )
    try:
        fitted = regressor.fit(spark.read.parquet(data))
    except InvalidInput as error:
        return str(error)
    fitted.save(model)
    return predict(data, model)


def predict(data: str, model: str) -> list[Any]:
    """The predictions of a saved model."""
    rows = TorchModel.load(model).transform(SparkSession.active().read.parquet(data)).orderBy("row")
    return [row.prediction for row in rows.select("prediction").collect()]


def run_rounds(folder: str, faults: Sequence[dict[str, Any]] = (), away: Sequence[int] = ()) -> dict[str, Any]:
    """Run, or resume, ``tests.faults.rounds``; after the rounds ``away``, wait until no executor is left."""
    spark = SparkSession.active()

    def listener(row: dict[str, Any]) -> None:
        if row["round"] in away:  # the one that is left is the driver
            until(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 1, "no executor")

    cluster, data = SparkCluster(spark, 2), frame(rounds.rows())
    return rounds.run(cluster, data, Path(folder), [Fault(**fault) for fault in faults], listener=listener)
